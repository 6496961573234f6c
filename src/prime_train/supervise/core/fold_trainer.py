"""Folds what the trainer of the live attempt reports into the State."""

from __future__ import annotations

from dataclasses import replace

from prime_train import events
from prime_train.events import Record
from prime_train.supervise.core.state import (
    Live,
    State,
    TaskScore,
    TrainerExit,
    Validation,
    evolve,
    evolve_attempt,
    evolve_live,
)

EVALUATIONS_KEPT = 64  # a resume from an earlier checkpoint goes back to one of them
MEASURES_KEPT = 1024  # of sets of text and benchmarks; an evaluation has a few of them, or some dozens


def rewind(state: State, step: int) -> State:
    """The state without the evaluations after `step`, because they belong to weights that are gone."""
    first, kept = state.first_validation, tuple(one for one in state.recent_validations if one.step <= step)
    first = first if first is not None and first.step <= step else None
    scores = tuple(score for score in state.recent_scores if score.step <= step)
    # A later evaluation is lost with its weights, but the first one still shows where the run began.
    at_first = {
        score.environment: replace(score, step=score.first_step, reward=score.first_reward)
        for score in state.task_scores
        if score.first_step <= step
    }
    latest = {score.environment: score for score in scores if score.environment in at_first}
    return evolve(
        state,
        first_validation=first,
        last_validation=kept[-1] if kept else first,
        recent_validations=kept,
        task_scores=tuple((at_first | latest).values()),
        recent_scores=scores,
        measured=tuple(one for one in state.measured if one.step <= step),
        samples=() if step == 0 else state.samples,
    )


def fold_validation(state: State, event: events.Evaluated) -> State:
    latest, first = Validation(event.step, event.loss, event.tokens), state.first_validation
    return evolve(
        state,
        first_validation=latest if first is None or first.step == event.step else first,
        last_validation=latest,
        recent_validations=(*state.recent_validations, latest)[-EVALUATIONS_KEPT:],
    )


def fold_measured(state: State, event: events.Measured) -> State:
    return evolve(state, measured=(*state.measured, event)[-MEASURES_KEPT:])


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


SAMPLES_KEPT = 16
SAVES_KEPT = 5


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
        case events.Evaluated() as event:
            return fold_validation(state, event)
        case events.Measured() as event:
            return fold_measured(state, event)
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
            return evolve(state, newest_complete=step, saving_step=None, unreadable=readable, saves_s=saves_s)
        case events.CheckpointUnreadable(step=step):
            return evolve(state, unreadable=tuple(sorted({*state.unreadable, step})))
        # The first failure in time is the cause; the ranks after it report only the connection that broke.
        case events.TrainerFailed() as event if live.failure is None or _outranks(event, live.failure):
            end = live.trainer_exit or TrainerExit("failed", record.time_s, state.step)
            return evolve_live(state, failure=event, trainer_exit=end)
        case events.TrainerStopped(step=step):
            return _fold_exit(state, TrainerExit("stopped", record.time_s, step))
        case events.TrainerFinished(step=step, final=final):
            return evolve(_fold_exit(state, TrainerExit("finished", record.time_s, step)), final=final)
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
