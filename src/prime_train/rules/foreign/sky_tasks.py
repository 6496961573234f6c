"""SkyPilot tasks: variables, and nodes that do not meet. Judges the text of a task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prime_train.config.foreign.values import ForeignPart, Open
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule

_OF_RUN = re.compile(r"\$\{?(SKYPILOT_NODE_RANK|SKYPILOT_NODE_IPS)\b")
_COMMENT = re.compile(r"(?m)^[ \t]*#.*$")


@file_rule("SKT002", Severity.NOTE)
def variable_without_a_value(reading: Reading) -> Iterator[Fault]:
    """A variable in `envs` or `secrets` without a value must be given when the task is submitted.

    SkyPilot refuses to launch a task with such a variable: null means that it is required

    Source: docs.skypilot.co, environment variables and secrets; skypilot PR#4610.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        envs: {RUN_NAME: null}
        run: python train.py --name $RUN_NAME
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        envs: {RUN_NAME: first}
        run: python train.py --name $RUN_NAME
    """
    for task in tasks_of(reading):
        for table, flag in (("envs", "--env"), ("secrets", "--secret")):
            for name, value in table_of(task.values.get(table)).items():
                if value is None or value == "":
                    fix = f"{flag} {name}=VALUE at sky launch, or a value here"
                    yield Fault("SKT002", (*task.at, table, name), f"{name} has no value", fix, document=task.document)


@file_rule("SKT003", Severity.WARNING)
def setup_asks_for_its_node(reading: Reading) -> Iterator[Fault]:
    """`setup` must not use SKYPILOT_NODE_RANK or SKYPILOT_NODE_IPS.

    they are set for `run` only, so in `setup` they are empty

    Source: docs.skypilot.co, environment variables; skypilot#2546, #6920.

    Bad:
        # file skypilot.yaml
        num_nodes: 2
        setup: echo $SKYPILOT_NODE_RANK > rank
        run: bash start.sh
    Good:
        # file skypilot.yaml
        num_nodes: 2
        setup: echo $SKYPILOT_SETUP_NODE_RANK > rank
        run: bash start.sh
    """
    for task in tasks_of(reading):
        found = _OF_RUN.search(script_of(task, "setup"))
        if found is not None:
            fix = f"${found[1].replace('SKYPILOT_', 'SKYPILOT_SETUP_')}, or do it in run"
            yield Fault("SKT003", (*task.at, "setup"), f"setup uses {found[1]}", fix, document=task.document)


@file_rule("SKT007", Severity.ERROR)
def nodes_that_do_not_meet(reading: Reading) -> Iterator[Fault]:
    """A launcher in a task with several nodes must get their number.

    SkyPilot runs the same command on each node: without the number of nodes each one trains alone, from the same seed

    Source: docs.skypilot.co, distributed jobs; skypilot#255, #272.

    Bad:
        # file skypilot.yaml
        num_nodes: 2
        resources: {accelerators: H100:8}
        run: torchrun --nproc_per_node 8 train.py
    Good:
        # file skypilot.yaml
        num_nodes: 2
        resources: {accelerators: H100:8}
        run: |
          first=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
          torchrun --nnodes $SKYPILOT_NUM_NODES --node_rank $SKYPILOT_NODE_RANK --master_addr $first train.py
    """
    for task in tasks_of(reading):
        nodes, run = task.values.get("num_nodes"), script_of(task, "run")
        launcher = _lonely_launcher(run)
        if isinstance(nodes, int) and nodes > 1 and launcher and "SKYPILOT_NODE" not in run:
            what = f"{launcher} starts on {nodes} nodes without their number"
            fix = (
                "--nnodes $SKYPILOT_NUM_NODES --node_rank $SKYPILOT_NODE_RANK --master_addr FIRST_OF_SKYPILOT_NODE_IPS"
            )
            yield Fault("SKT007", (*task.at, "num_nodes"), what, fix, document=task.document)


@file_rule("SKT008", Severity.ERROR)
def launcher_config_for_one_machine(reading: Reading) -> Iterator[Fault]:
    """The file of accelerate must have as many machines as the task has nodes.

    each node reads `num_machines: 1` and trains alone, as often as there are nodes

    Source: skypilot-org/skypilot@07f9af68:llm/gpt-oss-finetuning.

    Bad:
        # file skypilot.yaml
        num_nodes: 4
        resources: {accelerators: H100:8}
        run: accelerate launch --config_file fsdp.yaml train.py --node $SKYPILOT_NODE_RANK
        # file fsdp.yaml
        distributed_type: FSDP
        mixed_precision: bf16
        num_machines: 1
        num_processes: 8
        fsdp_config: {fsdp_version: 2}
    Good:
        # file skypilot.yaml
        num_nodes: 4
        resources: {accelerators: H100:8}
        run: accelerate launch --config_file fsdp.yaml --num_machines $SKYPILOT_NUM_NODES train.py
        # file fsdp.yaml
        distributed_type: FSDP
        mixed_precision: bf16
        num_machines: 1
        num_processes: 8
        fsdp_config: {fsdp_version: 2}
    """
    parts = (part for part in reading.foreign or () if part.format == "accelerate")
    files = [part.document.path for part in parts if part.values.get("num_machines") == 1]
    for task in tasks_of(reading):
        nodes, run = task.values.get("num_nodes"), script_of(task, "run")
        if (
            isinstance(nodes, int)
            and nodes > 1
            and files
            and "accelerate launch" in run
            and "--num_machines" not in run
        ):
            what = f"the task has {nodes} nodes, and {files[0]} has num_machines: 1"
            fix = "--num_machines $SKYPILOT_NUM_NODES --machine_rank $SKYPILOT_NODE_RANK --main_process_ip FIRST_NODE"
            yield Fault("SKT008", (*task.at, "num_nodes"), what, fix, document=task.document)


def tasks_of(reading: Reading) -> Iterator[ForeignPart]:
    return (part for part in reading.foreign or () if part.format == "skypilot")


def table_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value.text if isinstance(value, Open) else value if isinstance(value, str) else ""


def script_of(task: ForeignPart, key: str) -> str:
    """The commands of a section as they are written, without lines that are comments."""
    return _COMMENT.sub("", _text(task.values.get(key))).replace("\\\n", " ")


def _lonely_launcher(run: str) -> str:
    """The launcher of a script that starts one without a number of machines; "" if there is none."""
    for launcher, words in (("torchrun", ("--nnodes",)), ("accelerate launch", ("--num_machines", "--config_file"))):
        at = run.find(launcher)
        if at >= 0 and not any(word in run[at:] for word in words):
            return launcher
    return ""
