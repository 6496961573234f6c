"""What is known of how a training is launched: processes, machines, ranks and addresses. Pure.

The facts are the part `launch`, LAUNCH in conditions:

kind           torchrun, accelerate, deepspeed, srun, mpirun or python: what starts the processes
nproc          processes on a machine
nnodes         machines
world          all processes
everywhere     srun or mpirun starts the command on each machine
rank           the rank of the machine, where the command has a flag for it
rank_outside   `rank` is expanded by the batch script, which runs on the first machine alone
address, port  where the machines meet
standalone     the processes of one machine meet alone
devices        CUDA_VISIBLE_DEVICES
connections    CUDA_DEVICE_MAX_CONNECTIONS
long_lengths   VLLM_ALLOW_LONG_MAX_MODEL_LEN
program        the script, module or recipe that is started

A fact that the script does not decide is Open or not there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prime_train.config.foreign.arguments import Arguments, typed
from prime_train.config.foreign.shell.values import Word
from prime_train.config.foreign.starts import Layer, Start
from prime_train.config.foreign.values import Open
from prime_train.toml.place import KeyPath, Place

# launcher -> fact -> the flags that give it
_FLAGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "torchrun": {
        "nproc": ("nproc_per_node",),
        "nnodes": ("nnodes",),
        "rank": ("node_rank",),
        "address": ("master_addr", "rdzv_endpoint"),
        "port": ("master_port",),
        "standalone": ("standalone",),
    },
    "accelerate": {
        "world": ("num_processes",),
        "nnodes": ("num_machines",),
        "rank": ("machine_rank",),
        "address": ("main_process_ip",),
        "port": ("main_process_port",),
    },
    "deepspeed": {
        "nproc": ("num_gpus", "num_accelerators"),
        "nnodes": ("num_nodes",),
        "rank": ("node_rank",),
        "address": ("master_addr",),
        "port": ("master_port",),
    },
}
_ENVIRONMENT = {"nproc": "NPROC_PER_NODE", "nnodes": "NNODES", "rank": "NODE_RANK", "address": "MASTER_ADDR"}
_VARIABLES = {
    "devices": "CUDA_VISIBLE_DEVICES",
    "connections": "CUDA_DEVICE_MAX_CONNECTIONS",
    "long_lengths": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
}
_OWN_TORCHRUN = frozenset({"ms-swift", "llama-factory"})  # programs that start torchrun by these variables
_EVERYWHERE = frozenset({"srun", "mpirun"})
_RANK_OF_MACHINE = re.compile(r"SLURM_(?:NODEID|PROCID|LOCALID)")
_PORT = re.compile(r"(.+):(\d+)")

Facts = dict[str, Any]
Places = dict[KeyPath, Place]


def read_launch(start: Start, slurm: Mapping[str, Any] | None) -> tuple[Facts, Places]:
    """The facts of a start, and the places of the flags that they are from. `slurm`: the directives of the script."""
    facts: Facts = {"everywhere": _is_everywhere(start)}
    places: Places = {}
    launcher = start.launcher
    if launcher is not None:
        _read_flags(launcher, facts, places)
        facts["rank_outside"] = _is_rank_outside(launcher, start)
    elif start.program is not None and start.program.format in _OWN_TORCHRUN:
        _read_environment(start.command.environment, facts)
    if "kind" not in facts:
        _read_direct(start, facts, slurm)
    for fact, name in _VARIABLES.items():
        word = start.command.environment.get(name)
        if word is not None:
            facts[fact] = Open(word.text) if word.is_open else word.text
    if start.name.literal:
        facts["program"] = start.name.literal
    _multiply(facts)
    return facts, places


def _is_everywhere(start: Start) -> bool:
    outer = start.command.outer[:1]
    names = {layer.launcher.kind for layer in start.layers} | {word.text.rpartition("/")[2] for word in outer}
    return not _EVERYWHERE.isdisjoint(names)


def _read_flags(layer: Layer, facts: Facts, places: Places) -> None:
    values = layer.arguments.values
    facts["kind"] = layer.launcher.kind
    for fact, flags in _FLAGS[layer.launcher.kind].items():
        flag = next((each for each in flags if each in values), None)
        if flag is not None:
            facts[fact] = values[flag]
            places[(fact,)] = layer.arguments.places[(flag,)]
    if layer.launcher.kind == "torchrun":
        for fact in ("nproc", "nnodes"):
            facts.setdefault(fact, Open("flags") if values.is_partial else 1)
        if isinstance(facts["nproc"], str):  # gpu, auto
            facts["nproc"] = Open(facts["nproc"])
    if isinstance(facts.get("nnodes"), str):  # 1:4
        facts["nnodes"] = Open(facts["nnodes"])
    endpoint = facts.get("address")
    if isinstance(endpoint, str) and (found := _PORT.fullmatch(endpoint)) is not None:
        facts["address"] = found.group(1)
        facts.setdefault("port", int(found.group(2)))


def _is_rank_outside(layer: Layer, start: Start) -> bool:
    """Whether the batch script itself puts in the rank of its own machine for the command of all machines."""
    outer = start.command.outer
    inside = layer.arguments.values.get("node_rank", layer.arguments.values.get("machine_rank"))
    if not isinstance(inside, Open) or _RANK_OF_MACHINE.search(inside.text) is None:
        return False
    # In a quoted text for the other machines, only `\$SLURM_NODEID` is expanded there.
    return not outer or any(
        piece.is_open and _RANK_OF_MACHINE.search(piece.text) for word in outer for piece in word.pieces
    )


def _read_environment(environment: Mapping[str, Word], facts: Facts) -> None:
    """The facts of a program that starts torchrun itself if it finds these variables."""
    found = {fact: environment[name] for fact, name in _ENVIRONMENT.items() if name in environment}
    if "nproc" in found or "FORCE_TORCHRUN" in environment:
        facts["kind"] = "torchrun"
        facts.update((fact, Open(word.text) if word.is_open else typed(word.text)) for fact, word in found.items())
        facts.setdefault("nnodes", 1)


def _read_direct(start: Start, facts: Facts, slurm: Mapping[str, Any] | None) -> None:
    """The facts of a program without a launcher of its own: one process, or one for each task of srun."""
    kinds = [layer.launcher.kind for layer in start.layers if layer.launcher.kind in _EVERYWHERE]
    facts["kind"] = kinds[-1] if kinds else "srun" if facts["everywhere"] else "python"
    if not start.is_python and facts["kind"] == "python":
        del facts["kind"]  # a command of its own may start more processes
    elif facts["kind"] == "python":
        facts["nproc"] = facts["nnodes"] = 1
    elif facts["kind"] == "srun":
        flags = start.layers[0].arguments.values if start.layers else {}
        tasks = {**(slurm or {}), **flags}
        facts["nproc"], facts["nnodes"] = tasks.get("ntasks_per_node"), tasks.get("nodes")
        facts["world"] = tasks.get("ntasks")
        for fact in ("nproc", "nnodes", "world"):
            if not isinstance(facts[fact], int):
                del facts[fact]


def _multiply(facts: Facts) -> None:
    """Fills in one of processes, machines and all processes from the two others."""
    nproc, nnodes, world = (_count(facts.get(name)) for name in ("nproc", "nnodes", "world"))
    if nproc and nnodes:
        facts.setdefault("world", nproc * nnodes)
    elif world and nnodes and world % nnodes == 0:
        facts.setdefault("nproc", world // nnodes)


def _count(value: Any) -> int:
    """A count of processes or machines; 0 if it is not known."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def flags_of(start: Start) -> list[tuple[str, Arguments]]:
    """(format, flags) of each launcher of a start that has a format of its own."""
    return [(layer.launcher.name, layer.arguments) for layer in start.layers if layer.launcher.kind]
