"""Folds what the trainer says, or who speaks for it, into what is known of a run. Pure."""

from __future__ import annotations

from prime_train.events import (
    CheckpointSaved,
    CheckpointStarted,
    CheckpointUnreadable,
    Evaluated,
    Phase,
    Progress,
    Record,
    Sampled,
    TrainerEvent,
    TrainerFailed,
    TrainerFinished,
    TrainerStarted,
    TrainerStopped,
)
from prime_train.supervise.state import State, Validation, Word, changed, lives, with_attempt, with_live

SAMPLES_KEPT = 16


def fold_trainer(state: State, record: Record) -> State:
    """Only the live attempt speaks; what an earlier one says late is not about the present."""
    number = getattr(record.event, "attempt", None)
    if number is None or not lives(state, number) or not isinstance(record.event, TrainerEvent):
        return state
    state = with_live(state, last_sign_s=record.time_s)
    match record.event:
        case TrainerStarted() as event:
            return changed(state, started=event) if event.rank == 0 else state
        case Phase(name=name, detail=detail):
            state = with_live(state, phase=name, phase_detail=detail)
            return changed(state, state="running") if name in ("train", "evaluate", "checkpoint", "export") else state
        case Progress() as event:
            return _progressed(state, event, record)
        case Evaluated() as event:
            seen = Validation(event.step, event.loss, event.tokens)
            return changed(state, first_validation=state.first_validation or seen, last_validation=seen)
        case Sampled() as event:
            same = state.samples if state.samples and state.samples[-1].step == event.step else ()
            return changed(state, samples=(*same, event)[-SAMPLES_KEPT:])
        case CheckpointStarted(step=step):
            return changed(state, saving_step=step)
        case CheckpointSaved(step=step):
            readable = tuple(other for other in state.unreadable if other != step)  # written again, by this attempt
            return changed(state, newest_complete=step, saving_step=None, unreadable=readable)
        case CheckpointUnreadable(step=step):
            return changed(state, unreadable=tuple(sorted({*state.unreadable, step})))
        case TrainerFailed() as event:
            return _failed(state, event, record.time_s)
        case TrainerStopped(step=step):
            return _stands_at(with_live(state, word=Word("stopped", record.time_s, step)), step)
        case TrainerFinished(step=step, final=final):
            return changed(_stands_at(with_live(state, word=Word("finished", record.time_s, step)), step), final=final)
        case _:
            return state


def _progressed(state: State, event: Progress, record: Record) -> State:
    assert state.live is not None
    state = with_live(state, phase="train", phase_detail="", first_progress=state.live.first_progress or record)
    state = with_attempt(state, last_step=event.step)
    return changed(
        state,
        state="running",
        step=event.step,
        loss=event.loss,
        tokens_per_s=event.tokens_per_s,
        tokens_seen=event.tokens_seen,
        progress_s=record.time_s,
    )


def _stands_at(state: State, step: int) -> State:
    """The last word names the step exactly; progress is told only a few times a second."""
    return changed(with_attempt(state, last_step=step), step=step)


def _failed(state: State, event: TrainerFailed, time_s: float) -> State:
    assert state.live is not None
    if state.live.failure is not None:
        return state
    return with_live(state, failure=event, word=state.live.word or Word("failed", time_s, state.step))
