"""Folds the events of a run into its State. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import get_args

from prime_train import events
from prime_train.events import Record
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.core.fold_supervisor import fold_supervisor
from prime_train.supervise.core.state import (
    Live,
    ReadPosition,
    State,
    TaskScore,
    TrainerExit,
    Validation,
    evolve,
    evolve_attempt,
    evolve_live,
)
from prime_train.supervise.watches.hang.silence_limits import learn

EVALUATIONS_KEPT = 64  # a resume from an earlier checkpoint goes back to one of them
MEASURES_KEPT = 1024  # of sets of text and benchmarks; an evaluation has a few of them, or some dozens
_TRAINER_EVENTS = frozenset(get_args(events.TrainerEvent))
SAMPLES_KEPT = 16
SAVES_KEPT = 5


def fold(state: State, record: Record) -> State:
    """The state after one more event. Events that were read before change nothing, nor do events of a closed run."""
    position = next((position for position in state.read if position.writer == record.writer), None)
    # A file that was replaced is read again from its start, and no event may count twice.
    if position is not None and position.life == record.life and record.seq <= position.seq:
        return state
    folded = state
    if not state.closed or isinstance(record.event, events.RunOpened):
        is_trainers = type(record.event) in _TRAINER_EVENTS
        folded = fold_trainer(state, record) if is_trainers else fold_supervisor(state, record)
        # Most events teach nothing, and a copy of the state for each of them would cost seconds of a long run.
        learned = learn(folded.learned, record)
        folded = folded if learned is folded.learned else evolve(folded, learned=learned)
    text = "" if folded is state else describe(record.event)
    if text:
        folded = evolve(folded, last_event=text, last_event_s=record.time_s)
    return evolve(folded, read=_update_positions(folded.read, record, position))


def fold_all(records: Iterable[Record]) -> State:
    return reduce(fold, records, State())


def _update_positions(
    read: tuple[ReadPosition, ...], record: Record, before: ReadPosition | None
) -> tuple[ReadPosition, ...]:
    """The read positions after this record. A launch drops the writers of earlier attempts: they write no more."""
    attempt = getattr(record.event, "attempt", None) if type(record.event) in _TRAINER_EVENTS else None
    if before is not None:
        attempt = None if before.attempt is None or attempt is None else max(before.attempt, attempt)
    others = [position for position in read if position.writer != record.writer]
    if isinstance(record.event, events.LaunchAsked):
        others = [other for other in others if other.attempt is None or other.attempt >= record.event.attempt]
    return (*others, ReadPosition(record.writer, record.seq, attempt, record.life))


def fold_validation(state: State, event: events.Evaluated) -> State:
    latest, first = Validation(event.step, event.loss, event.tokens), state.first_validation
    return evolve(
        state,
        first_validation=latest if first is None or first.step == event.step else first,
        last_validation=latest,
        recent_validations=(*state.recent_validations, latest)[-EVALUATIONS_KEPT:],
    )


def fold_tasks(state: State, event: events.TasksEvaluated) -> State:
    earlier = {score.environment: score for score in state.task_scores}
    first = earlier.get(event.environment)
    # A step that is evaluated again after a resume replaces its own first value.
    first = None if first is not None and first.first_step == event.step else first
    score = TaskScore(
        environment=event.environment,
        first_step=first.first_step if first else event.step,
        first_reward=first.first_reward if first else event.reward,
        step=event.step,
        reward=event.reward,
    )
    return evolve(
        state,
        task_scores=tuple((earlier | {event.environment: score}).values()),
        recent_scores=(*state.recent_scores, score)[-EVALUATIONS_KEPT:],
    )


def fold_trainer(state: State, record: Record) -> State:
    """Only events of the live attempt count: a late event of an earlier attempt does not describe the present."""
    live = state.live
    event = record.event
    if live is None or not isinstance(event, events.TrainerEvent) or event.attempt != live.number:
        return state
    if not isinstance(event, events.Progress):  # nearly all events are of this kind
        state = evolve_live(state, last_sign_s=record.time_s)
    match event:
        case events.TrainerStarted() as event:
            return evolve(state, started=event) if event.rank == 0 else state
        case events.Phase(name=name, detail=detail):
            # The phases before these load and prepare: the run counts as running when it works on its weights.
            state = evolve_live(state, phase=name, phase_detail=detail)
            return evolve(state, state="running") if name in ("train", "evaluate", "checkpoint", "export") else state
        case events.Progress() as event:
            folded = _fold_progress(state, live, event, record)
            # prime-rl's last rows may be read after the launcher's last line.
            is_late = live.trainer_exit is not None and event.step < live.trainer_exit.step
            return evolve(evolve_attempt(folded, last_step=state.step), step=state.step) if is_late else folded
        case events.ReplicaLost(gpus=gpus) if gpus:
            return evolve_live(state, freed_gpus=tuple(sorted({*live.freed_gpus, *gpus})))
        case events.Evaluated() as event:
            return fold_validation(state, event)
        case events.Measured() as event:
            return evolve(state, measured=(*state.measured, event)[-MEASURES_KEPT:])
        case events.TasksEvaluated() as event:
            return fold_tasks(state, event)
        case events.RolloutsFailed(failed=failed):
            return evolve(state, rollouts_failed=state.rollouts_failed + failed)
        case events.Sampled() as event:
            same = state.samples if state.samples and state.samples[-1].step == event.step else ()
            return evolve(state, samples=(*same, event)[-SAMPLES_KEPT:])
        case events.CheckpointStarted(step=step):
            return evolve(state, saving_step=step)
        case events.CheckpointSaved(step=step, write_s=write_s):
            readable = tuple(other for other in state.unreadable if other != step)  # this attempt wrote it again
            saves_s = (*state.saves_s, write_s)[-SAVES_KEPT:]
            return evolve(
                state,
                newest_complete=step,
                saving_step=None,
                saved_s=record.time_s,
                unreadable=readable,
                saves_s=saves_s,
            )
        case events.CheckpointUnreadable(step=step):
            return evolve(state, unreadable=tuple(sorted({*state.unreadable, step})))
        case events.SettingsApplied(version=version, step=step, max_steps=max_steps, values=values):
            applied = tuple(sorted((dict(state.settings_applied) | {version: step}).items()))
            # A dropped version has no values: it is passed, and those before it stay in force.
            in_force = max(state.settings_in_force, (version, step)) if values else state.settings_in_force
            state = evolve(state, settings_applied=applied, settings_in_force=in_force, max_steps=max_steps)
            return evolve(state, settings_version=max(state.settings_version, version))
        case events.StopListened():
            return evolve_live(state, listens=True)
        case events.SaveListened():
            return evolve_live(state, saves=True)
        # The first failure in time is the cause; the ranks after it report only the connection that broke.
        case events.TrainerFailed() as event if live.failure is None or _outranks(event, live.failure):
            end = live.trainer_exit or TrainerExit("failed", record.time_s, state.step)
            return evolve_live(state, failure=event, trainer_exit=end)
        case events.TrainerStopped(step=step):
            return _fold_exit(state, TrainerExit("stopped", record.time_s, step))
        case events.TrainerFinished(step=step, final=final, note=note):
            return evolve(_fold_exit(state, TrainerExit("finished", record.time_s, step, note)), final=final)
        case _:
            return state


def _outranks(event: events.TrainerFailed, earlier: events.TrainerFailed) -> bool:
    """Whether a machine was lost, or its trainer killed, and another rank reported the lost connection before that."""
    return earlier.cause_class == "unknown" and event.cause_class in ("signal", "hardware")


def _fold_progress(state: State, live: Live, event: events.Progress, record: Record) -> State:
    first = live.first_progress or record
    attempt = evolve(state.attempts[-1], last_step=event.step)
    return evolve(
        state,
        live=evolve(live, last_sign_s=record.time_s, phase="train", phase_detail="", first_progress=first),
        attempts=(*state.attempts[:-1], attempt),
        state="running",
        step=event.step,
        max_steps=state.max_steps if event.total is None else event.total,
        loss=event.loss,
        reward=event.reward,
        tokens_per_s=event.tokens_per_s,
        tokens_seen=event.tokens_seen,
        unit=event.unit,
        progress_s=record.time_s,
    )


def _fold_exit(state: State, end: TrainerExit) -> State:
    """The last event names the step exactly; Progress events come only a few times a second."""
    return evolve(evolve_attempt(evolve_live(state, trainer_exit=end), last_step=end.step), step=end.step)
