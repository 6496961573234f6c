"""Folds the events of the trainer, or of its observer, into the State of a run. Pure."""

from __future__ import annotations

from prime_train import events
from prime_train.events import Record
from prime_train.supervise.state import Live, State, TrainerExit, Validation, evolve, evolve_attempt, evolve_live

SAMPLES_KEPT = 16


def fold_trainer(state: State, record: Record) -> State:
    """Only events of the live attempt count: a late event of an earlier attempt does not describe the present."""
    live = state.live
    if live is None or not isinstance(record.event, events.TrainerEvent) or record.event.attempt != live.number:
        return state
    state = evolve_live(state, last_sign_s=record.time_s)
    match record.event:
        case events.TrainerStarted() as event:
            return evolve(state, started=event) if event.rank == 0 else state
        case events.Phase(name=name, detail=detail):
            state = evolve_live(state, phase=name, phase_detail=detail)
            return evolve(state, state="running") if name in ("train", "evaluate", "checkpoint", "export") else state
        case events.Progress() as event:
            return _fold_progress(state, live, event, record)
        case events.Evaluated() as event:
            latest = Validation(event.step, event.loss, event.tokens)
            return evolve(state, first_validation=state.first_validation or latest, last_validation=latest)
        case events.Sampled() as event:
            same = state.samples if state.samples and state.samples[-1].step == event.step else ()
            return evolve(state, samples=(*same, event)[-SAMPLES_KEPT:])
        case events.CheckpointStarted(step=step):
            return evolve(state, saving_step=step)
        case events.CheckpointSaved(step=step):
            readable = tuple(other for other in state.unreadable if other != step)  # this attempt wrote it again
            return evolve(state, newest_complete=step, saving_step=None, unreadable=readable)
        case events.CheckpointUnreadable(step=step):
            return evolve(state, unreadable=tuple(sorted({*state.unreadable, step})))
        case events.TrainerFailed() as event if live.failure is None:
            end = live.trainer_exit or TrainerExit("failed", record.time_s, state.step)
            return evolve_live(state, failure=event, trainer_exit=end)
        case events.TrainerStopped(step=step):
            return _fold_exit(state, TrainerExit("stopped", record.time_s, step))
        case events.TrainerFinished(step=step, final=final):
            return evolve(_fold_exit(state, TrainerExit("finished", record.time_s, step)), final=final)
        case _:
            return state


def _fold_progress(state: State, live: Live, event: events.Progress, record: Record) -> State:
    state = evolve_live(state, phase="train", phase_detail="", first_progress=live.first_progress or record)
    state = evolve_attempt(state, last_step=event.step)
    return evolve(
        state,
        state="running",
        step=event.step,
        loss=event.loss,
        tokens_per_s=event.tokens_per_s,
        tokens_seen=event.tokens_seen,
        progress_s=record.time_s,
    )


def _fold_exit(state: State, end: TrainerExit) -> State:
    """The last event names the step exactly; Progress events come only a few times a second."""
    return evolve(evolve_attempt(evolve_live(state, trainer_exit=end), last_step=end.step), step=end.step)
