"""Layouts of processes that do not add up. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec


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
