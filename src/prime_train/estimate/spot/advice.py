"""Advises how often a run on spot machines should save, and what its own interval costs. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.estimate.spot.interval import Advice, Saves, compute_excess, recommend
from prime_train.estimate.values import find_largest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_GB = 1e9
_SAVED_BYTES = 12  # per parameter in fp32: the weight and AdamW's two moments (ZeRO, arXiv 1910.02054, s. 3.1)
# Seconds per GB of state, measured: bench/checkpoint.py, 538 MB, 2 cores, 2026-11-21. The loop waits while the state is
# copied into memory; without async saves it waits for torch's dcp.save.
_ASYNC_STALL_S = 0.0077 / 0.538
_SYNC_STALL_S = 0.87 / 0.538
_WRITE_S = 2.67 / 0.538
_LITTLE = 0.01  # the extra time that a longer interval may cost and is still recommended
_MUCH = 0.05


class SpotSaves(NamedTuple):
    """The recommended interval, and the longest one that costs at most 1 % more time.

    `excess` is the extra time of the run's own interval, `interval_steps`, against the recommended one; both are None
    if the run saves only at its end. `measured`: the save times are those of an earlier run, not assumed.
    """

    advice: Advice
    longest_steps: int
    interval_steps: int | None
    excess: float | None
    saves: Saves
    per_hour: float
    measured: bool

    @property
    def is_far(self) -> bool:
        """Whether the run's own interval costs more than 5 % of its time."""
        return self.excess is not None and is_far(self.excess)


def assume_saves(run: RunSpec, parameters: int) -> Saves:
    """Save times of a state of this size, for a run without a measurement. An adapter alone is smaller and faster."""
    size_gb = _SAVED_BYTES * parameters / _GB
    is_async = prime_rl_of(run).trainer is None and run.checkpoint.async_save  # prime-rl waits for its saves
    stall_s = size_gb * (_ASYNC_STALL_S if is_async else _SYNC_STALL_S)
    return Saves(stall_s, max(stall_s, size_gb * _WRITE_S))


def advise_saves(
    run: RunSpec, step_s: float, per_hour: float, restart_s: float, saves: Saves, *, measured: bool
) -> SpotSaves:
    """The advice for a run that trains. Raises ValueError unless `per_hour` and `step_s` are positive."""
    steps = run.run.max_steps
    best = recommend(saves, per_hour, step_s, steps)

    def excess(interval_steps: int) -> float:
        return compute_excess(interval_steps * step_s, best.interval_s, saves, per_hour, restart_s)

    longest = find_largest(best.interval_steps, steps, lambda interval_steps: excess(interval_steps) <= _LITTLE)
    own = run.checkpoint.interval_steps
    return SpotSaves(best, longest, own, None if own is None else excess(min(own, steps)), saves, per_hour, measured)


def is_far(excess: float) -> bool:
    return excess > _MUCH


def describe_excess(excess: float) -> str:
    """ "7% more time", "a run without end"."""
    return "a run without end" if math.isinf(excess) else f"{excess:.0%} more time"
