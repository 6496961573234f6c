"""Finds the places of a run again while it trains. A thread does it, because it reads disks.

Some trainers show only by their first checkpoint where they save, or which of their layouts they have.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.supervise.core.state import State


class PlacesSearch:
    """Searches after each checkpoint and each start of an attempt, never twice at the same time."""

    def __init__(self, find: Callable[[], StepPlaces]) -> None:
        self._find = find
        self._searched: tuple[int, int] | None = None  # attempts and newest complete step at the latest search
        self._thread: threading.Thread | None = None
        self._found: StepPlaces | None = None

    def take(self, state: State) -> StepPlaces | None:
        """The places by the latest search; None before the first one has ended. Never waits."""
        seen = (len(state.attempts), state.newest_complete)
        is_busy = self._thread is not None and self._thread.is_alive()
        if seen != self._searched and not is_busy:
            self._searched = seen
            self._thread = threading.Thread(target=self._search, name="disk-places", daemon=True)
            self._thread.start()
        return self._found

    def _search(self) -> None:
        with contextlib.suppress(OSError):  # the next checkpoint starts another search
            self._found = self._find()
