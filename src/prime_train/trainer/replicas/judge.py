"""Decides what happens to the replicas of an attempt: which hangs, when one starts again, when all is over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prime_train.trainer.replicas.life_sign import LifeSign

DEFAULT_LIMIT_S = 60.0  # of one sum: replicas enter it together, because a quorum is before each step
FLOOR_S, CEILING_S = 30.0, 1800.0  # of a limit that is learned from steps
FACTOR = 5.0  # of the longest step that was seen
_STEPS_NEEDED = 5  # the first ones compile and fill caches
_BACKOFF_MAX_S = 60.0
_STEADY_S = 600.0  # a replica that lived so long was well


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Seconds without a new sign. `step_s`: None = learned. `sum_s`: a sum ends by itself after it."""

    startup_s: float
    step_s: float | None
    slow_s: float
    sum_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """One replica as the launcher sees it. `sign`: the latest of this process; None before its first one."""

    number: int
    started_s: float
    sign: LifeSign | None = None
    exit_code: int | None = None  # None = it runs
    ended_s: float = 0.0
    failures: int = 0  # in a row, each after a short life


@dataclass(frozen=True, slots=True)
class SeenSteps:
    """How long the steps of the attempt took, from the signs of all replicas."""

    step: int = 0
    since_s: float = 0.0
    count: int = 0
    longest_s: float = 0.0

    def add(self, step: int, now_s: float) -> SeenSteps:
        if step <= self.step:
            return self
        gap_s = now_s - self.since_s if self.count else 0.0
        longest_s = max(self.longest_s, gap_s) if self.count >= _STEPS_NEEDED else self.longest_s
        return SeenSteps(step, now_s, self.count + 1, longest_s)


def find_limit_s(sign: LifeSign | None, limits: HangLimits, seen: SeenSteps) -> float:
    """How long this sign may be the latest one."""
    if sign is None or sign.stage in ("setup", "ready"):
        return limits.startup_s
    if sign.stage == "saves":
        return limits.slow_s
    step_s = limits.step_s
    if step_s is None:
        known = seen.count > 2 * _STEPS_NEEDED
        step_s = min(CEILING_S, max(FLOOR_S, FACTOR * seen.longest_s)) if known else limits.startup_s
    # The others wait in a sum for the one that hangs. They leave it first, and so only that one is late.
    return step_s + limits.sum_s if sign.stage == "sums" else step_s


def find_hung(replicas: Sequence[Watched], limits: HangLimits, seen: SeenSteps, now_s: float) -> dict[int, str]:
    """The replicas to kill, and why. One that waits for the others hangs only if the others go on without it."""
    found: dict[int, str] = {}
    for one in replicas:
        if one.exit_code is not None or (one.sign is not None and one.sign.stage in ("done", "left")):
            continue
        limit_s = find_limit_s(one.sign, limits, seen)
        silent_s = now_s - (one.started_s if one.sign is None else one.sign.since_s)
        if silent_s <= limit_s:
            continue
        if one.sign is not None and one.sign.stage == "waits" and one.sign.step >= seen.step:
            continue
        stage = "setup" if one.sign is None else one.sign.stage
        found[one.number] = f"no sign for {silent_s:.1f} s in stage {stage}, limit {limit_s:.1f} s"
    return found


def compute_restart_s(failures: int) -> float:
    """Seconds until a lost replica starts again: at once the first time, then longer each time."""
    return 0.0 if failures <= 1 else min(_BACKOFF_MAX_S, 2.0 ** (failures - 1))


def count_failures(one: Watched) -> int:
    """The failures in a row, with the one that has just ended."""
    return 1 if one.ended_s - one.started_s > _STEADY_S else one.failures + 1


def judge_end(replicas: Sequence[Watched]) -> int | None:
    """The exit code of the attempt; None while it goes on. It is done when the leader is, and over when all have ended.

    Where none is left that trains, the state is only in the checkpoints: then a new attempt starts from there.
    """
    if any(one.exit_code == 0 and one.sign is not None and one.sign.stage == "done" for one in replicas):
        return 0
    codes = [one.exit_code for one in replicas]
    if any(code is None for code in codes):
        return None
    return next((code for code in codes if code), 1)
