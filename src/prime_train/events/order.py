"""Puts the records of several writers into one order. Pure: no clock, no I/O.

Clocks are set back, so times order only what nothing else orders. The records of one writer keep the order of its file.
The supervisor launches an attempt before the attempt's processes write, and writes its end after they have ended, so
their records stand between these two events.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from prime_train.events.record import Record
from prime_train.events.schema import AttemptEnded, LaunchAsked, TrainerEvent

SUPERVISOR = "supervisor"


def merge(by_writer: Iterable[Sequence[Record]]) -> list[Record]:
    """All records in order. Each sequence has the records of one writer, as its file has them."""
    files = [records for records in by_writer if records]
    if len(files) == 1:
        return list(files[0])
    parts: dict[int, list[list[Record]]] = {}
    stages = _Stages(next((records for records in files if records[0].writer == SUPERVISOR), ()))
    for records in files:
        for number, group in groupby(zip(stages.of(records), records, strict=True), lambda pair: pair[0]):
            parts.setdefault(number, []).append([record for _, record in group])
    return list(chain.from_iterable(heapq.merge(*parts[number], key=lambda one: one.order) for number in sorted(parts)))


class _Stages:
    """Divides the supervisor's records: each launch is a stage, the records up to the end of the attempt are the next
    one, and the end begins another."""

    def __init__(self, supervisor: Sequence[Record]) -> None:
        self._of_attempt: dict[int, int] = {}
        self._own: list[int] = []
        self._latest_s: list[float] = []
        stage, latest_s = 0, 0.0
        for record in supervisor:
            match record.event:
                case LaunchAsked(attempt=attempt):
                    stage += 2
                    self._of_attempt[attempt] = stage
                    self._own.append(stage - 1)
                case AttemptEnded(attempt=attempt) if self._of_attempt.get(attempt) == stage:
                    stage += 1
                    self._own.append(stage)
                case _:
                    self._own.append(stage)
            latest_s = max(latest_s, record.time_s)
            self._latest_s.append(latest_s)

    def of(self, records: Sequence[Record]) -> Iterator[int]:
        """The stage of each record of one writer; it never falls."""
        if records[0].writer == SUPERVISOR:
            yield from self._own
            return
        stage = 0
        for record in records:
            stage = max(stage, self._find(record))
            yield stage

    def _find(self, record: Record) -> int:
        if isinstance(record.event, TrainerEvent):
            found = self._of_attempt.get(record.event.attempt)
            if found is not None:
                return found
        before = bisect_right(self._latest_s, record.time_s)
        return self._own[before - 1] if before else 0
