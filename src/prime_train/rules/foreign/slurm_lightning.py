"""A script on Lightning in a Slurm job: whether its processes are the tasks of the job. Parses it, and runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from prime_train.config.foreign.follow import find_file
from prime_train.config.foreign.values import MOST_BYTES, ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core import outside
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule

_TRAINERS = frozenset({"Trainer", "Fabric"})
_PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")


@file_rule("SLU008", Severity.ERROR)
def tasks_are_not_the_devices(reading: Reading) -> Iterator[Fault]:
    """A script on Lightning has as many devices as the job has tasks on a node.

    Lightning takes the tasks of srun as its processes, and refuses another number or waits for what never starts

    A script that is beside the job is judged by the numbers in it.

    Source: lightning/fabric/plugins/environments/slurm.py, validate_settings; Lightning#20391; Lightning#18950.

    Bad:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        #SBATCH --ntasks-per-node=1
        #SBATCH --gpus-per-node=4
        srun python train.py
        # file train.py
        from lightning import Trainer
        Trainer(devices=4, num_nodes=1, strategy="ddp").fit(model)
    Good:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        #SBATCH --ntasks-per-node=4
        #SBATCH --gpus-per-node=4
        srun python train.py
        # file train.py
        from lightning import Trainer
        Trainer(devices=4, num_nodes=1, strategy="ddp").fit(model)
    """
    parts = reading.foreign or ()
    job = next((part for part in parts if part.format == "sbatch"), None)
    tasks = None if job is None else job.values.get("ntasks_per_node")
    if job is None or type(tasks) is not int:
        return
    for launch in parts:
        if launch.format == "launch" and launch.values.get("kind") == "srun" and not launch.moved:
            devices = _read_devices(launch)
            if devices is not None and devices != tasks:
                what = f"{launch.values['program']} has {devices} devices, and a node has {tasks} tasks"
                fix = f"#SBATCH --ntasks-per-node={devices}"
                yield Fault("SLU008", (*job.at, "ntasks_per_node"), what, fix, document=job.document)
                return


def _read_devices(launch: ForeignPart) -> int | None:
    """The devices that a script gives to Lightning as a number; None if it is no such script, or gives several."""
    name = launch.values.get("program")
    path = find_file(name, launch.document.path) if isinstance(name, str) and name.endswith(".py") else None
    if path is None:
        return None
    try:
        tree = ast.parse(outside.read_text(path, MOST_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not any(_imports_lightning(node) for node in ast.walk(tree)):
        return None
    found = {number for node in ast.walk(tree) if (number := _devices_of(node)) is not None}
    return found.pop() if len(found) == 1 else None


def _imports_lightning(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)):
            return module.split(".")[0] in _PACKAGES
        case ast.Import(names=names):
            return any(alias.name.split(".")[0] in _PACKAGES for alias in names)
    return False


def _devices_of(node: ast.AST) -> int | None:
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for keyword in node.keywords if name in _TRAINERS else ():
        if keyword.arg == "devices" and isinstance(keyword.value, ast.Constant) and type(keyword.value.value) is int:
            return keyword.value.value if keyword.value.value > 0 else None
    return None
