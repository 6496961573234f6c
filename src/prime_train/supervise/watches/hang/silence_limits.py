"""Learns from a trainer's own events how long it may be silent. Pure: no clock, no I/O, no metrics file.

The limit comes from the run itself, not from one number for every run: the largest gap times a factor of 5, without
the first 5 steps, as in the nvidia-resiliency-ext documentation. Phases that are slow by nature do not count: set-up,
evaluation, export, and every step during which a checkpoint was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from prime_train import events

EXEMPT_STEPS = 5  # of an attempt, because they compile, fill caches and allocate memory
GAPS_NEEDED = 5  # fewer do not predict the largest one to come
FACTOR = 5.0
FLOOR_S = 60.0
SEVERAL_FLOOR_S = 75.0  # on several machines: one that is lost is named after 60 s, and is the cause of the silence
CEILING_S = 45 * 60.0  # also for a program that reports nothing
SAVING_LEAST_S, SAVING_MOST_S = 5 * 60.0, 10 * 60.0
SAVING_FACTOR = 2.0  # a save may take twice as long as the longest before it
REPORTED_WITHIN_S = 2.0  # after a jump of the clock; less than the smallest jump that counts
PATIENCE = 3.0  # limits that a silent attempt may use while its processes work

SETUP_PHASES = frozenset({"start", "setup", "tokenizer", "data", "compile"})
SLOW_PHASES = frozenset({"evaluate", "checkpoint", "export"})


class Learned(NamedTuple):
    """Values learned from the events of one attempt.

    Times are seconds since the epoch, like the stamps of events. A tuple, because a supervisor that starts creates one
    for every step of the history that it reads.
    """

    attempt: int = 0  # 0 = none was launched, so nothing is learned
    heard: bool = False  # the trainer has written any event
    step: int | None = None  # of the latest progress
    steps_seen: int = 0
    gaps_seen: int = 0  # that count
    largest_gap_s: float = 0.0
    early_gap_s: float = 0.0  # the largest of the exempt first steps
    since_s: float | None = None  # start of the gap that the next progress ends; None = it will not count
    saving_since_s: float | None = None
    longest_save_s: float = 0.0
    largest_ended_s: float = 0.0  # end of the largest gap
    before_largest_s: float = 0.0  # the largest gap before that one
    phase_limit_s: float = 0.0  # of the phase since the latest step, where the trainer knows it


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """The limits that a config sets. A number that is set is used as it is."""

    startup_limit_s: float = 900.0  # before the first step, and until enough gaps were seen
    step_limit_s: float | None = None  # None = learned
    slow_phase_limit_s: float = 1800.0
    reports: bool = True  # it reports its phases from the start; otherwise it has CEILING_S until its first event
    is_mute: bool = False  # nothing shows its steps, so it has CEILING_S all the time
    floor_s: float = FLOOR_S  # of a learned limit


def learn(learned: Learned, record: events.Record) -> Learned:
    """The values after one more event. Events of other attempts change nothing."""
    event, time_s = record.event, record.time_s
    if isinstance(event, events.Progress):  # first, as nearly all events are of this kind
        return _add_step(learned, event, time_s) if event.attempt == learned.attempt > 0 else learned
    match event:
        case events.LaunchAsked(attempt=attempt):
            return Learned(attempt) if attempt > learned.attempt else learned
        case events.ClockJumped(jump_s=jump_s):
            return _shift(learned, jump_s, time_s)
    if not learned.attempt or getattr(event, "attempt", 0) != learned.attempt:
        return learned
    match event:
        case events.Phase(name="train"):
            since_s = None if learned.saving_since_s is not None else time_s
            return learned._replace(heard=True, since_s=since_s, phase_limit_s=0.0)
        case events.Phase(limit_s=limit_s):
            return learned._replace(heard=True, since_s=None, phase_limit_s=limit_s)
        case events.CheckpointStarted():
            return learned._replace(heard=True, since_s=None, saving_since_s=time_s)
        case events.CheckpointSaved(write_s=write_s):
            lasted_s = time_s - learned.saving_since_s if learned.saving_since_s is not None else write_s
            longest_s = max(learned.longest_save_s, write_s, lasted_s)
            return learned._replace(heard=True, saving_since_s=None, longest_save_s=longest_s)
        case events.TrainerStarted() | events.Evaluated() | events.Sampled():
            return learned if learned.heard else learned._replace(heard=True)
        case _:
            return learned


def shift_time(time_s: float, jump_s: float, reported_s: float) -> float:
    """A moment on the clock after its jump, which was reported at `reported_s`.

    Events between the jump and its report already carry stamps of the new clock.
    """
    if jump_s > 0:
        is_shifted = time_s + jump_s > reported_s + REPORTED_WITHIN_S / 2
    else:
        is_shifted = reported_s - REPORTED_WITHIN_S < time_s <= reported_s
    return time_s if is_shifted else time_s + jump_s


def _shift(learned: Learned, jump_s: float, reported_s: float) -> Learned:
    """A clock that was set, or a machine that slept, is no slow step, even if the step ended before the report."""
    held_s = learned.largest_gap_s
    if 0 < jump_s <= held_s + REPORTED_WITHIN_S / 2 and learned.largest_ended_s > reported_s - REPORTED_WITHIN_S:
        held_s = max(learned.before_largest_s, held_s - jump_s)
    begun = (learned.since_s, learned.saving_since_s)
    since_s, saving_s = (None if time_s is None else shift_time(time_s, jump_s, reported_s) for time_s in begun)
    return learned._replace(largest_gap_s=held_s, since_s=since_s, saving_since_s=saving_s)


def _add_step(learned: Learned, event: events.Progress, time_s: float) -> Learned:
    attempt, _, step, steps, gaps, largest_s, early_s, since_s, saving_since_s, save_s, at_s, second_s, _ = learned
    if since_s is not None and time_s > since_s:
        gap_s = time_s - since_s
        if steps < EXEMPT_STEPS:
            early_s = max(early_s, gap_s)
        else:
            gaps += 1
            if gap_s > largest_s:
                largest_s, at_s, second_s = gap_s, time_s, largest_s
    steps += 1 if step is None else max(0, event.step - step)
    since_s = time_s if saving_since_s is None else None
    seen = (steps, gaps, largest_s, early_s)
    return Learned(attempt, True, event.step, *seen, since_s, saving_since_s, save_s, at_s, second_s)


def compute_limit_s(learned: Learned, phase: str, limits: SilenceLimits) -> float:
    """Seconds since the trainer's last event after which its silence is suspicious in `phase`."""
    started = learned.steps_seen > 0
    if learned.phase_limit_s:
        return learned.phase_limit_s
    if phase in SLOW_PHASES:
        return max(limits.slow_phase_limit_s, 0.0 if started else limits.startup_limit_s)
    if not started and limits.is_mute:
        return max(CEILING_S, limits.startup_limit_s)
    if not learned.heard and not limits.reports:
        return max(CEILING_S, limits.startup_limit_s)
    if not started or phase in SETUP_PHASES:
        return limits.startup_limit_s
    if limits.step_limit_s is not None:
        return limits.step_limit_s
    saving_s = 0.0 if learned.saving_since_s is None else _compute_saving_s(learned)
    return _compute_step_limit_s(learned, limits) + saving_s


def _compute_step_limit_s(learned: Learned, limits: SilenceLimits) -> float:
    """A limit that grows with the gaps seen and never exceeds the ceiling, unless the start-up limit itself does."""
    if learned.gaps_seen >= GAPS_NEEDED:
        return min(CEILING_S, max(limits.floor_s, FACTOR * learned.largest_gap_s))
    seen_s = max(learned.early_gap_s, learned.largest_gap_s)
    return max(limits.startup_limit_s, min(CEILING_S, FACTOR * seen_s))


def _compute_saving_s(learned: Learned) -> float:
    """The extra time for a checkpoint in flight: by the longest save seen, the maximum before the first save."""
    if learned.longest_save_s == 0.0:
        return SAVING_MOST_S
    return min(SAVING_MOST_S, max(SAVING_LEAST_S, SAVING_FACTOR * learned.longest_save_s))


def compute_longest_s(limit_s: float) -> float:
    """The silence after which an attempt counts as hung even if its processes work."""
    return max(limit_s, min(PATIENCE * limit_s, CEILING_S))


def compute_recheck_s(last_sign_s: float, limit_s: float, now_s: float) -> float:
    """When a silent attempt whose processes work is checked again; at most `now_s` if its time is up."""
    return min(now_s + limit_s / 2, last_sign_s + compute_longest_s(limit_s))
