"""Learns from a trainer's own events how long it may be silent. Pure: no clock, no I/O, no metrics file.

Limits out of what was seen instead of one number for every run: the largest gap times a factor of 5, the first 5
steps left out, as the nvidia-resiliency-ext documentation has it. What is slow by its nature does not teach: set-up,
evaluation, export, and every step that a checkpoint was written beside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prime_train.events import (
    CheckpointSaved,
    CheckpointStarted,
    ClockJumped,
    LaunchAsked,
    Phase,
    Progress,
    Record,
)
from prime_train.events.kinds import Event

EXEMPT_STEPS = 5  # of an attempt: they compile, fill caches and find their memory
GAPS_NEEDED = 5  # fewer say little about the largest one to come
FACTOR = 5.0
FLOOR_S = 60.0
CEILING_S = 45 * 60.0  # also for a job that reports nothing
SAVING_LEAST_S, SAVING_MOST_S = 5 * 60.0, 10 * 60.0
SAVING_FACTOR = 2.0  # a save may take twice as long as the longest before it
PATIENCE = 3.0  # limits that a silent attempt gets while its processes plainly work

SETUP_PHASES = frozenset({"start", "setup", "tokenizer", "data", "compile"})
SLOW_PHASES = frozenset({"evaluate", "checkpoint", "export"})


@dataclass(frozen=True, slots=True)
class Learned:
    """What the events of one attempt have taught. Times are seconds since the epoch, as the events are stamped."""

    attempt: int = 0  # 0 = not known: every event counts
    heard: bool = False  # the trainer has said anything
    step: int | None = None  # of the latest progress
    steps_seen: int = 0
    gaps_seen: int = 0  # those that count
    largest_gap_s: float = 0.0
    early_gap_s: float = 0.0  # the largest of the exempt first steps
    since_s: float | None = None  # where the gap began that the next progress ends; None = it will not count
    saving_since_s: float | None = None
    longest_save_s: float = 0.0


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
        case LaunchAsked(attempt=attempt):
            return Learned(attempt)
        case ClockJumped(jump_s=jump_s):
            return _moved(learned, jump_s)
        case _ if not _of_trainer(learned, event):
            return learned
        case Phase(name="train"):
            return replace(learned, heard=True, since_s=None if learned.saving_since_s is not None else record.time_s)
        case Phase():
            return replace(learned, heard=True, since_s=None)
        case CheckpointStarted():
            return replace(learned, heard=True, since_s=None, saving_since_s=record.time_s)
        case CheckpointSaved(write_s=write_s):
            lasted_s = record.time_s - learned.saving_since_s if learned.saving_since_s is not None else write_s
            longest_s = max(learned.longest_save_s, write_s, lasted_s)
            return replace(learned, heard=True, saving_since_s=None, longest_save_s=longest_s)
        case Progress():
            return _stepped(learned, event, record.time_s)
        case _:
            return replace(learned, heard=True)


_TRAINERS = frozenset({"trainer_started", "phase", "progress", "evaluated", "sampled"})
_SAVES = frozenset({"checkpoint_started", "checkpoint_saved"})


def _of_trainer(learned: Learned, event: Event) -> bool:
    if event.kind not in _TRAINERS | _SAVES:
        return False
    return learned.attempt in (0, getattr(event, "attempt", learned.attempt))


def _moved(learned: Learned, jump_s: float) -> Learned:
    """A clock that was set, or a machine that slept, is no slow step."""
    return replace(
        learned,
        since_s=None if learned.since_s is None else learned.since_s + jump_s,
        saving_since_s=None if learned.saving_since_s is None else learned.saving_since_s + jump_s,
    )


def _stepped(learned: Learned, event: Progress, time_s: float) -> Learned:
    gap_s = max(0.0, time_s - learned.since_s) if learned.since_s is not None else None
    counts = gap_s is not None and learned.steps_seen >= EXEMPT_STEPS
    taken = 1 if learned.step is None else max(0, event.step - learned.step)
    return replace(
        learned,
        heard=True,
        step=event.step,
        steps_seen=learned.steps_seen + taken,
        gaps_seen=learned.gaps_seen + counts,
        largest_gap_s=max(learned.largest_gap_s, gap_s or 0.0) if counts else learned.largest_gap_s,
        early_gap_s=learned.early_gap_s if counts else max(learned.early_gap_s, gap_s or 0.0),
        since_s=None if learned.saving_since_s is not None else time_s,
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
