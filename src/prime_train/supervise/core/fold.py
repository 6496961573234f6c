"""Folds the events of a run into its State. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import get_args

from prime_train import events
from prime_train.events import Record
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.core.fold_supervisor import fold_supervisor
from prime_train.supervise.core.fold_trainer import fold_trainer
from prime_train.supervise.core.state import ReadPosition, State, evolve
from prime_train.supervise.watches.hang.silence_limits import learn

_TRAINER_EVENTS = frozenset(get_args(events.TrainerEvent))


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
    """The state after a whole history."""
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
