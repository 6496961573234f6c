"""Learns from a trainer's own events how long it may be silent. Pure: no clock, no I/O, no metrics file.

Limits out of what was seen instead of one number for every run: the largest gap times a factor of 5, the first 5
steps left out, as the nvidia-resiliency-ext documentation has it. What is slow by its nature does not teach: set-up,
evaluation, export, and every step that a checkpoint was written beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from prime_train.events import (
    CheckpointSaved,
    CheckpointStarted,
    ClockJumped,
    Evaluated,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    Sampled,
    TrainerStarted,
)

EXEMPT_STEPS = 5  # of an attempt: they compile, fill caches and find their memory
GAPS_NEEDED = 5  # fewer say little about the largest one to come
FACTOR = 5.0
FLOOR_S = 60.0
CEILING_S = 45 * 60.0  # also for a job that reports nothing
SAVING_LEAST_S, SAVING_MOST_S = 5 * 60.0, 10 * 60.0
SAVING_FACTOR = 2.0  # a save may take twice as long as the longest before it
TOLD_WITHIN_S = 2.0  # a jump of the clock is told so soon, which is less than the least that counts as one
PATIENCE = 3.0  # limits that a silent attempt gets while its processes plainly work

SETUP_PHASES = frozenset({"start", "setup", "tokenizer", "data", "compile"})
SLOW_PHASES = frozenset({"evaluate", "checkpoint", "export"})


class Learned(NamedTuple):
    """What the events of one attempt have taught. Times are seconds since the epoch, as the events are stamped.

    A tuple, because it is made anew at every step of a history that a supervisor reads when it starts.
    """

    attempt: int = 0  # 0 = none was launched: nothing teaches
    heard: bool = False  # the trainer has said anything
    step: int | None = None  # of the latest progress
    steps_seen: int = 0
    gaps_seen: int = 0  # those that count
    largest_gap_s: float = 0.0
    early_gap_s: float = 0.0  # the largest of the exempt first steps
    since_s: float | None = None  # where the gap began that the next progress ends; None = it will not count
    saving_since_s: float | None = None
    longest_save_s: float = 0.0
    largest_ended_s: float = 0.0  # when the largest gap was over
    before_largest_s: float = 0.0  # the largest gap until then


@dataclass(frozen=True, slots=True)
class Limits:
    """How long silence may last as far as it is set. A number that is set holds as it is."""

    startup_limit_s: float = 900.0  # before the first step, and until enough was seen
    step_limit_s: float | None = None  # None = learned
    slow_phase_limit_s: float = 1800.0
    reports: bool = True  # it speaks of its phases from the start; else it has CEILING_S until its first word


def learn(learned: Learned, record: Record) -> Learned:
    """What is known after one more event. Those of other attempts, and those that teach nothing, change nothing."""
    event = record.event
    match event:
        case Progress():  # first, as nearly all events are of this kind
            return _stepped(learned, event, record.time_s) if event.attempt == learned.attempt > 0 else learned
        case LaunchAsked(attempt=attempt):
            return Learned(attempt) if attempt > learned.attempt else learned
        case ClockJumped(jump_s=jump_s):
            return _jumped(learned, jump_s, record.time_s)
        case Phase() | CheckpointStarted() | CheckpointSaved() | TrainerStarted() | Evaluated() | Sampled():
            return _heard(learned, event, record.time_s) if event.attempt == learned.attempt > 0 else learned
        case _:
            return learned


def _heard(
    learned: Learned,
    event: Phase | CheckpointStarted | CheckpointSaved | TrainerStarted | Evaluated | Sampled,
    time_s: float,
) -> Learned:
    match event:
        case Phase(name="train"):
            return learned._replace(heard=True, since_s=None if learned.saving_since_s is not None else time_s)
        case Phase():
            return learned._replace(heard=True, since_s=None)
        case CheckpointStarted():
            return learned._replace(heard=True, since_s=None, saving_since_s=time_s)
        case CheckpointSaved(write_s=write_s):
            lasted_s = time_s - learned.saving_since_s if learned.saving_since_s is not None else write_s
            longest_s = max(learned.longest_save_s, write_s, lasted_s)
            return learned._replace(heard=True, saving_since_s=None, longest_save_s=longest_s)
        case _:
            return learned if learned.heard else learned._replace(heard=True)


def moved(time_s: float, jump_s: float, told_s: float) -> float:
    """A moment on the clock as it is after it has jumped, which was told at `told_s`.

    What was stamped between the jump and its telling is on that clock already.
    """
    if jump_s > 0:
        is_moved = time_s + jump_s > told_s + TOLD_WITHIN_S / 2
    else:
        is_moved = told_s - TOLD_WITHIN_S < time_s <= told_s
    return time_s if is_moved else time_s + jump_s


def _jumped(learned: Learned, jump_s: float, told_s: float) -> Learned:
    """A clock that was set, or a machine that slept, is no slow step; not the step either that ended before it was
    told."""
    held_s = learned.largest_gap_s
    if 0 < jump_s <= held_s + TOLD_WITHIN_S / 2 and learned.largest_ended_s > told_s - TOLD_WITHIN_S:
        held_s = max(learned.before_largest_s, held_s - jump_s)
    return learned._replace(
        since_s=None if learned.since_s is None else moved(learned.since_s, jump_s, told_s),
        saving_since_s=None if learned.saving_since_s is None else moved(learned.saving_since_s, jump_s, told_s),
        largest_gap_s=held_s,
    )


def _stepped(learned: Learned, event: Progress, time_s: float) -> Learned:
    attempt, _, step, steps_seen, gaps_seen, largest_s, early_s, since_s, saving_since_s, save_s, at_s, second_s = (
        learned
    )
    if since_s is not None and time_s > since_s:
        gap_s = time_s - since_s
        if steps_seen < EXEMPT_STEPS:
            early_s = max(early_s, gap_s)
        else:
            gaps_seen += 1
            if gap_s > largest_s:
                largest_s, at_s, second_s = gap_s, time_s, largest_s
    steps_seen += 1 if step is None else max(0, event.step - step)
    since_s = time_s if saving_since_s is None else None
    return Learned(
        attempt,
        True,
        event.step,
        steps_seen,
        gaps_seen,
        largest_s,
        early_s,
        since_s,
        saving_since_s,
        save_s,
        at_s,
        second_s,
    )


def limit_s(learned: Learned, phase: str, limits: Limits) -> float:
    """Seconds of silence, since the trainer's last event, beyond which it is suspect in `phase`."""
    started = learned.steps_seen > 0
    if phase in SLOW_PHASES:
        return max(limits.slow_phase_limit_s, 0.0 if started else limits.startup_limit_s)
    if not learned.heard and not limits.reports:
        return max(CEILING_S, limits.startup_limit_s)
    if not started or phase in SETUP_PHASES:
        return limits.startup_limit_s
    if limits.step_limit_s is not None:
        return limits.step_limit_s
    return _step_limit_s(learned, limits) + (_saving_s(learned) if learned.saving_since_s is not None else 0.0)


def _step_limit_s(learned: Learned, limits: Limits) -> float:
    """A limit that grows with what was seen and never passes the ceiling, unless the start-up limit itself does."""
    if learned.gaps_seen >= GAPS_NEEDED:
        return min(CEILING_S, max(FLOOR_S, FACTOR * learned.largest_gap_s))
    seen_s = max(learned.early_gap_s, learned.largest_gap_s)
    return max(limits.startup_limit_s, min(CEILING_S, FACTOR * seen_s))


def _saving_s(learned: Learned) -> float:
    """What a checkpoint in flight adds: by the longest save seen, and the most before the first."""
    if learned.longest_save_s == 0.0:
        return SAVING_MOST_S
    return min(SAVING_MOST_S, max(SAVING_LEAST_S, SAVING_FACTOR * learned.longest_save_s))


def longest_s(limit_s: float) -> float:
    """Silence after which an attempt counts as hung whatever its processes do."""
    return max(limit_s, min(PATIENCE * limit_s, CEILING_S))


def until_s(last_sign_s: float, limit_s: float, now_s: float) -> float:
    """When a silent attempt whose processes work is looked at again; not after `now_s` where its time is up."""
    return min(now_s + limit_s / 2, last_sign_s + longest_s(limit_s))
