"""Decides what happens to the replicas of an attempt: which hangs, when one starts again, when all is over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prime_train.core.errors import ExitCode
from prime_train.trainer.replicas.life_sign import LifeSign
from prime_train.trainer.replicas.limits import FIRST_STEPS, keep, learn_limit_s

_STEADY_S = 600.0  # a replica that lived so long was well


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Seconds without a new sign. `step_s`: None = learned. `sum_s`: of a sum whose limit is not in the sign."""

    startup_s: float
    step_s: float | None
    slow_s: float
    sum_s: float


@dataclass(frozen=True, slots=True)
class WatchedReplica:
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
    steps_s: tuple[float, ...] = ()  # without the first ones

    def add(self, step: int, now_s: float) -> SeenSteps:
        if step <= self.step:
            return self
        is_known = self.count >= FIRST_STEPS
        # A round of several steps is committed at once, and each step of it has a sign of its own.
        steps_s = keep(self.steps_s, (now_s - self.since_s) / (step - self.step)) if is_known else self.steps_s
        return SeenSteps(step, now_s, self.count + 1, steps_s)


def find_limit_s(sign: LifeSign | None, limits: HangLimits, seen: SeenSteps) -> float:
    """How long this sign may be the latest one."""
    if sign is None or sign.stage in ("setup", "ready"):
        return limits.startup_s
    # One that waits keeps no other one waiting, and the state of a large model takes minutes to come.
    if sign.stage in ("saves", "waits"):
        return limits.slow_s
    if sign.stage == "sums":
        # The others wait in a sum for the one that hangs. They leave it first, and so only that one is late.
        step_s = learn_limit_s(seen.steps_s, limits.startup_s) if limits.step_s is None else limits.step_s
        return step_s + (sign.sum_limit_s or limits.sum_s)
    if limits.step_s is not None:
        return limits.step_s
    return learn_limit_s(seen.steps_s, limits.startup_s, is_wide=sign.is_wide)


def find_hung(replicas: Sequence[WatchedReplica], limits: HangLimits, seen: SeenSteps, now_s: float) -> dict[int, str]:
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


def compute_restart_s(failures: int, backoff_s: float, backoff_max_s: float) -> float:
    """Seconds until a lost replica starts again: at once the first time, then twice as long each time."""
    return 0.0 if failures <= 1 else min(backoff_max_s, backoff_s * 2.0 ** min(failures - 2, 30))


def count_failures(one: WatchedReplica) -> int:
    """The failures in a row, with the one that has just ended."""
    return 1 if one.ended_s - one.started_s > _STEADY_S else one.failures + 1


def judge_end(
    replicas: Sequence[WatchedReplica], seen: SeenSteps, resume_step: int, others: Sequence[WatchedReplica] = ()
) -> int | None:
    """The exit code of the attempt; None while it goes on. It is done when the leader is.

    `others`: those of other machines, from which a lost replica gets the weights too.

    It is over when no replica has the weights of the latest step: those that start again have none before another one
    gives them, and would begin at the first step. A new attempt starts from a checkpoint.
    """
    if any(one.exit_code == 0 and one.sign is not None and one.sign.stage == "done" for one in replicas):
        return 0
    codes = [one.exit_code for one in replicas]
    is_starting = seen.step <= resume_step and None in codes
    if is_starting and ExitCode.RUN_FAILED in codes:  # every replica would end by it, one start after the other
        return ExitCode.RUN_FAILED
    if is_starting or any(_has_weights(one, seen) for one in (*replicas, *others)):
        return None
    return next((code for code in codes if code), 1)


def judge_other_machine(replicas: Sequence[WatchedReplica], seen: SeenSteps) -> int | None:
    """The exit code on a machine other than 0. It ends with the run, and starts again what is lost before.

    The weights are on machine 0, without which there is no step.
    """
    codes = [one.exit_code for one in replicas]
    if not seen.step and ExitCode.RUN_FAILED in codes:  # each start would end by it
        return ExitCode.RUN_FAILED
    return 0 if None not in codes and 0 in codes else None


def _has_weights(one: WatchedReplica, seen: SeenSteps) -> bool:
    # A step or round less than was seen, because one that is lost may have committed the last one alone.
    return (
        one.exit_code is None
        and one.sign is not None
        and one.sign.stage in ("waits", "works", "sums", "saves", "done")
        and one.sign.step >= seen.step - one.sign.round_steps
    )
