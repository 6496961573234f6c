"""Writes the supervisor's events, and folds the events of all writers into the state of the run. Decides nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from prime_train.core.rundir import RunDir
from prime_train.events import Event, EventLog, Follower, Record
from prime_train.events.record import describe
from prime_train.supervise.core import snapshot
from prime_train.supervise.core.attempt_end import events_lost_error
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State

WRITER = "supervisor"

Show = Callable[[State, Sequence[Record]], None]


class Journal:
    """The events of a run and its state, which comes only from reading them.

    `handle` is called for each new record with the state after it, and `show` after each reading with all of them.
    """

    def __init__(self, run_dir: RunDir, handle: Callable[[State, Record], None], show: Show) -> None:
        self.state = State()
        self._run_dir = run_dir
        self._handle = handle
        self._show = show
        self._log = EventLog(run_dir.events, WRITER)
        self._follower = Follower(run_dir.events)
        self._saved_bytes = 0

    def read(self) -> list[Record]:
        """Fold the new records; returns them."""
        records = self._follower.poll()
        for record in records:
            self.state = fold(self.state, record)
            self._handle(self.state, record)
        if self._follower.read_bytes - self._saved_bytes >= snapshot.SAVED_BYTES * 8:
            self._saved_bytes = self._follower.read_bytes
            with contextlib.suppress(OSError):  # a cache
                snapshot.save(self._run_dir, self.state, self._follower)
        self._show(self.state, records)
        return records

    def append(self, event: Event) -> None:
        """Write an event and read it back. Raises UserError if that fails, because the loop would repeat the action.

        The life and the position prove that the line is this one; the reader has compared its checksum.
        """
        written = self._log.append(event)
        if not any((read.life, read.seq) == (written.life, written.seq) for read in self.read()):
            raise events_lost_error(self._run_dir)

    def append_last(self, event: Event) -> None:
        """Write an event that no decision follows, without reading it back."""
        self._log.append(event)

    def check_exists(self) -> None:
        """Raises UserError if the file of the supervisor's events is gone."""
        if not self._log.path.exists():
            raise events_lost_error(self._run_dir)

    def describe_damage(self) -> str:
        """What of the events read so far is not used; empty if all of it is."""
        return describe(self._follower.damage)

    def close(self) -> None:
        self._log.close()
