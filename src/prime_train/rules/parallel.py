"""Numbers of processes that do not fit the layout or the machine. Pure: the facts are given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, if_known, known, rule
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


@rule("PAR001", Severity.ERROR)
def layout_does_not_fill_processes(run: RunSpec) -> Iterator[Problem]:
    """dp_replicate x dp_shard must be the number of processes.

    every process has one place in the mesh: the launch fails when some have none

    Source: torch.distributed, init_device_mesh (the product of a mesh's sizes is the world size).

    Bad:
        [parallel]
        processes = 4
        dp_replicate = 1
        dp_shard = 2
    Bad:
        [parallel]
        processes = 4
        dp_shard = 3
    Good:
        [parallel]
        processes = 4
        dp_replicate = 2
        dp_shard = 2
    """
    layout = run.parallel
    if layout.dp_replicate is not None:
        product = layout.dp_replicate * layout.dp_shard
        if product != layout.processes:
            yield Problem(
                "parallel.processes",
                f"`parallel.dp_replicate` {layout.dp_replicate} x `parallel.dp_shard` {layout.dp_shard} = {product}, "
                f"not {layout.processes}",
                patch={"parallel.processes": product},
            )
    elif layout.processes % layout.dp_shard:
        yield Problem(
            "parallel.dp_shard",
            f"`parallel.processes` {layout.processes} do not divide by {layout.dp_shard}",
            patch={"parallel.dp_shard": math.gcd(layout.processes, layout.dp_shard)},
        )


@facts_rule("PAR002", Severity.ERROR, needs=("gpus",), uses=("cpu",))
def more_processes_than_devices(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """There must be a GPU for every process; without GPUs there should be a core.

    a rank without a GPU of its own ends the launch

    On a machine without GPUs, more processes than cores is a warning: they take turns.

    Source: trainer/device.py (one GPU per rank).

    Bad:
        [parallel]
        processes = 16
    Bad:
        [parallel]
        processes = 16
        [facts.gpus]
        devices = [{name = "NVIDIA H200", memory_bytes = 150754820096, compute_capability = [9, 0]}]
    Good:
        [parallel]
        processes = 2
    """
    processes, gpus = run.parallel.processes, len(known(facts.gpus).devices)
    cpu = if_known(facts, "cpu")  # of another machine only its GPUs are known
    cores = cpu.cores if cpu is not None else processes
    if processes <= (gpus or cores):
        return
    plain = run.parallel.dp_shard == 1 and run.parallel.dp_replicate is None and run.batch.global_batch is None
    patch = {"parallel.processes": gpus or cores} if plain and run.batch.global_batch_tokens is None else {}
    if gpus:
        what = f"{processes} processes, and {gpus} GPU{'s are' if gpus > 1 else ' is'} visible"
        yield Problem("parallel.processes", what, "`parallel.processes` <= GPUs" if not patch else "", patch)
    else:
        yield Problem(
            "parallel.processes",
            f"{processes} processes share {cores} core{'s' if cores > 1 else ''}, and no GPU is visible",
            "`parallel.processes` <= cores" if not patch else "",
            patch,
            why="they take turns: more processes are no faster, and each holds its own memory",
            severity=Severity.WARNING,
        )
