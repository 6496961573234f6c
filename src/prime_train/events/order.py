"""Puts the records of several writers into one order. Pure: no clock, no I/O.

Clocks are set back, so times order only what nothing else orders. The records of one writer keep the order of its file.
The supervisor launches an attempt before the attempt's processes write, and writes its end after they have ended, so
their records stand between these two events.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from prime_train.events.record import AttemptEnded, LaunchAsked, Record, TrainerEvent

SUPERVISOR = "supervisor"


def merge(by_writer: Iterable[tuple[str, Iterable[Record]]]) -> Iterator[Record]:
    """All records in order. Each writer has its records as its file has them; they are read one at a time, because a
    long run has millions. Those of the supervisor, which are few, are read first.
    """
    files = list(by_writer)
    own = next((list(records) for writer, records in files if writer == SUPERVISOR), [])
    if len(files) == 1:
        return iter(own or files[0][1])
    stages = _Stages(own)
    others = (stages.of(records) for writer, records in files if writer != SUPERVISOR)
    merged = heapq.merge(zip(stages.own, own, strict=True), *others, key=lambda pair: (pair[0], pair[1].order))
    return (record for _, record in merged)


class _Stages:
    """Divides the supervisor's records: each launch is a stage, the records up to the end of the attempt are the next
    one, and the end begins another."""

    def __init__(self, supervisor: Sequence[Record]) -> None:
        self._of_attempt: dict[int, int] = {}
        self.own: list[int] = []
        self._latest_s: list[float] = []
        stage, latest_s = 0, 0.0
        for record in supervisor:
            match record.event:
                case LaunchAsked(attempt=attempt):
                    stage += 2
                    self._of_attempt[attempt] = stage
                    self.own.append(stage - 1)
                case AttemptEnded(attempt=attempt) if self._of_attempt.get(attempt) == stage:
                    stage += 1
                    self.own.append(stage)
                case _:
                    self.own.append(stage)
            # The latest time so far never falls, so that a search by time finds one place.
            latest_s = max(latest_s, record.time_s)
            self._latest_s.append(latest_s)

    def of(self, records: Iterable[Record]) -> Iterator[tuple[int, Record]]:
        """Each record of another writer with its stage, which never falls."""
        stage = 0
        for record in records:
            stage = max(stage, self._find(record))
            yield stage, record

    def _find(self, record: Record) -> int:
        if isinstance(record.event, TrainerEvent):
            # The attempt orders an event better than its time: the clock of another machine may differ by minutes.
            found = self._of_attempt.get(record.event.attempt)
            if found is not None:
                return found
        before = bisect_right(self._latest_s, record.time_s)
        return self.own[before - 1] if before else 0
