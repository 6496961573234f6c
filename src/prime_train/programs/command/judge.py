"""Decides what the end of a command means: exit code 0 alone is no proof that the training finished. Pure.

Nine trainers exit with 0 after SIGTERM, or where their data ran out. So a training has finished at its last step, or by
a last line that only a finished one prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prime_train.events import TrainerFailed, TrainerFinished, TrainerStopped

EndEvent = TrainerFinished | TrainerStopped | TrainerFailed


@dataclass(frozen=True, slots=True)
class EndRules:
    """What exit codes and the last line mean, by the config and the profile."""

    title: str
    is_described: bool
    zero_is_finished: bool
    end_line: bool
    finished: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    resumes: tuple[int, ...] = ()  # exit codes that ask for another start
    bad_node: tuple[int, ...] = ()  # exit codes that accuse the machine


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """What was seen of an attempt whose processes have ended."""

    attempt: int
    returncode: int | None
    step: int  # the latest, 0 if none is known
    first_step: int  # the one that the attempt began from
    target: int | None
    newest_complete: int
    is_stopping: bool  # this supervisor asked for the end
    has_end_line: bool
    has_stop_line: bool  # the trainer reports that it was asked to stop
    log: str
    loss: float = math.nan
    newest: str = ""  # the path of the newest complete checkpoint


def judge_end(rules: EndRules, seen: SeenEnd) -> EndEvent | None:
    """The last event of the trainer; None where the exit code and the logs show more."""
    code = seen.returncode
    if code in rules.failed:
        return _fail(seen, "config", f"it exited with {code}", "command.exits.failed: another try would fail again")
    if code in rules.finished or (code == 0 and _has_finished(rules, seen)):
        return _finish(seen)
    if seen.is_stopping:
        return TrainerStopped(seen.attempt, max(seen.newest_complete, 0))
    if code in rules.resumes:
        return _fail(seen, "unknown", f"it exited with {code}", f"{rules.title} asks for another start by this code")
    if code in rules.bad_node:
        return _fail(seen, "hardware", f"it exited with {code}", f"{rules.title} found wrong results of this machine")
    if code != 0:
        return None
    if not rules.is_described and seen.target is None:
        return _finish(seen, _describe_unknown(seen))
    return _stop_early(seen)


def _has_finished(rules: EndRules, seen: SeenEnd) -> bool:
    """Whether an exit with 0 is the end of the training."""
    if seen.target is not None and max(seen.step, seen.newest_complete) >= seen.target:
        return True
    was_asked = seen.has_stop_line or seen.is_stopping
    by_line = rules.end_line and seen.has_end_line and not was_asked
    return by_line or (rules.is_described and rules.zero_is_finished and not was_asked)


def _finish(seen: SeenEnd, note: str = "") -> TrainerFinished:
    step = max(seen.step, seen.newest_complete)
    if not note and seen.target is not None:
        step = max(step, seen.target)
    return TrainerFinished(seen.attempt, step, seen.loss, seen.newest, note)


def _describe_unknown(seen: SeenEnd) -> str:
    reached = f" at step {seen.step:,}" if seen.step else ""
    return f"exit 0{reached}; whether it finished is not known, because its last step is not"


def _stop_early(seen: SeenEnd) -> TrainerFailed:
    """Exit code 0 before the last step. Without any progress another try would do the same."""
    reached = f"at step {seen.step:,}" if seen.step else "without a step"
    of = f" of {seen.target:,}" if seen.target is not None and seen.step else ""
    what = f"it exited with 0 {reached}{of}, and did not finish"
    why = "another process stopped it, or the data ran out" if seen.has_stop_line or seen.step else "it did not train"
    has_moved = seen.step > seen.first_step
    return _fail(seen, "unknown" if has_moved else "config", what, why)


def _fail(seen: SeenEnd, cause_class: str, what: str, why: str) -> TrainerFailed:
    return TrainerFailed(seen.attempt, 0, cause_class, what, why, f"read {seen.log}", seen.log)
