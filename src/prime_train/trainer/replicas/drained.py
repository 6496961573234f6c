"""Finds the replicas on drained GPUs, and how many replicas an attempt starts without them. Ends none. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from prime_train.core.drained_gpus import read_drained
from prime_train.core.rank_times import read_all_times
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec


def find_drained(run: RunSpec, run_dir: RunDir, attempt: int, before: Mapping[int, str]) -> dict[int, str]:
    """The number of each replica that is to end, with its GPU: the ranks report theirs beside their times.

    `before`: what was found last. The times of a replica are gone when it has ended.
    """
    gpus = read_drained(run_dir, attempt)
    times = read_all_times(run_dir.rank_times(attempt), run_dir.path) if gpus else {}
    each = run.parallel.group_processes
    kept = {number: gpu for number, gpu in before.items() if gpu in gpus}
    return kept | {rank // each: one.gpu for rank, one in sorted(times.items()) if one.gpu in gpus}


def count_replicas(run: RunSpec, visible: str | None) -> int:
    """The replicas to start on this machine: those of the config, or fewer where the supervisor leaves GPUs out.

    `visible`: CUDA_VISIBLE_DEVICES. The supervisor names GPUs by their UUIDs.
    """
    layout, here = run.parallel, run.parallel.replicas_here
    found = sum(name.startswith("GPU-") for name in (visible or "").split(","))
    if not found:
        return here
    return max(min(layout.min_replicas, here), min(here, found // layout.group_processes))
