"""Advises how often a run on spot machines should save, and what its own interval costs. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.estimate.cost.run_cost import InterruptedRun, UninterruptedRun, expect_interruptions
from prime_train.estimate.values import find_largest
from prime_train.spec import RunSpec
from prime_train.spec.answers import saves_in_background

_HOUR_S = 3600.0


class Saves(NamedTuple):
    """How long a checkpoint takes. `stall_s`: the training stands still. `write_s`: from its start to its marker.

    Only the stall costs time in every interval; the next save cannot start before the write has ended.
    """

    stall_s: float
    write_s: float


class IntervalAdvice(NamedTuple):
    """The recommended interval, and Young's first-order one beside it, in seconds of training and in steps.

    `reason` names what decided: "daly", "write" (a shorter interval would not let a save end) or "run" (the run is
    shorter than the interval).
    """

    interval_s: float
    interval_steps: int
    young_s: float
    reason: str


def young_interval_s(stall_s: float, between_s: float) -> float:
    """The interval that loses least, to first order: sqrt(2 delta M).

    delta is the time of a save, M the mean time between interruptions. Source: J. W. Young, "A first order
    approximation to the optimum checkpoint interval", CACM 17(9), 1974, p. 530.
    """
    return math.sqrt(2 * stall_s * between_s)


def daly_interval_s(stall_s: float, between_s: float) -> float:
    """The interval that loses least, to higher order, in seconds of work between two saves.

    sqrt(2 delta M) (1 + 1/3 sqrt(delta / 2M) + 1/9 (delta / 2M)) - delta for delta < 2M, else M. Source: J. T. Daly,
    "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, eq. 37.
    """
    if stall_s >= 2 * between_s:
        return between_s
    part = stall_s / (2 * between_s)
    return math.sqrt(2 * stall_s * between_s) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s


def recommend(saves: Saves, per_hour: float, step_s: float, max_steps: int) -> IntervalAdvice:
    """How often to save. Raises ValueError unless `per_hour`, `step_s` and `max_steps` are positive."""
    if per_hour <= 0 or step_s <= 0 or max_steps <= 0:
        raise ValueError("an interval needs interruptions, a step time and steps")
    between_s = _HOUR_S / per_hour
    wanted_s, reason = daly_interval_s(saves.stall_s, between_s), "daly"
    if wanted_s < saves.write_s:
        wanted_s, reason = saves.write_s, "write"
    steps = max(1, math.ceil(wanted_s / step_s) if reason == "write" else round(wanted_s / step_s))
    if steps >= max_steps:
        steps, reason = max_steps, "run"
    return IntervalAdvice(steps * step_s, steps, young_interval_s(saves.stall_s, between_s), reason)


def expect(work_s: float, interval_s: float, saves: Saves, per_hour: float, restart_s: float) -> InterruptedRun:
    """The expected run by Daly's complete cost function (eq. 20): see estimate/cost/run_cost.py."""
    return expect_interruptions(UninterruptedRun(work_s, interval_s, saves.stall_s), per_hour, restart_s)


def compute_excess(interval_s: float, best_s: float, saves: Saves, per_hour: float, restart_s: float) -> float:
    """How much longer a run takes with `interval_s` than with `best_s`: 0.1 is 10 %. Infinite if it never ends."""
    work_s = 1e4 * max(interval_s, best_s)
    best = expect(work_s, best_s, saves, per_hour, restart_s).run_s
    here = expect(work_s, interval_s, saves, per_hour, restart_s).run_s
    return math.inf if math.isinf(here) else max(0.0, here / best - 1)


_GB = 1e9
SAVED_BYTES = 12  # per parameter in fp32: the weight and AdamW's two moments (ZeRO, arXiv 1910.02054, s. 3.1)
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

    advice: IntervalAdvice
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
    size_gb = SAVED_BYTES * parameters / _GB
    stall_s = size_gb * (_ASYNC_STALL_S if saves_in_background(run) else _SYNC_STALL_S)
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
