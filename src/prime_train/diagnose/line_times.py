"""Finds the time of each line of one log: its own, or that of the nearest line above that has one. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prime_train.diagnose.hits import WriteWindow
from prime_train.diagnose.log_prefix import strip_prefixes
from prime_train.diagnose.timestamps import Stamp, StampClock

_LOOK_BACK = 60  # lines that are searched for the time of a line without one
_INDENTED = (b"  ", b"\t")  # a line that starts so has no time
# Every format of a time has one of the two; looking for them is cheaper than trying every prefix.
_TIME = re.compile(rb"\d:\d\d:\d\d|\d{6}")


class LineTimes:
    """The times of one log, whose lines come in blocks. Lines of a block are asked for in their order."""

    def __init__(self, changed_s: float | None) -> None:
        self.clock = StampClock(changed_s)
        self.first: Stamp | None = None
        self.last: Stamp | None = None
        self.received: tuple[Stamp, float] | None = None  # the time in a line, and when the line was received
        self._lines: Sequence[bytes] = ()
        self._searched = 0  # lines of the block
        self._before: Stamp | None = None  # the last time before the block

    def start_block(self, lines: Sequence[bytes]) -> None:
        self._lines, self._searched, self._before = lines, 0, self.last
        if self.first is None:
            stamps = map(_read_stamp, lines[:_LOOK_BACK])
            self.first = next((self.clock.record(stamp) for stamp in stamps if stamp is not None), None)

    def end_block(self, written: WriteWindow | None) -> None:
        """`written`: when the block was written."""
        last = self._find_before(len(self._lines))
        if last is not self._before and last is not None and written is not None:
            self.received = (last, written.until_s)

    def find(self, index: int, own: Stamp | None) -> Stamp | None:
        """The time of a line of the block. `own`: the one in the line."""
        if own is None:
            found = self._find_before(index)
        else:
            found = self.last = self.clock.record(own)
            self._searched = index + 1
        self.first = self.first or found
        return found

    def _find_before(self, index: int) -> Stamp | None:
        """The time of the nearest line above that has one. Each line is searched once."""
        for raw in self._lines[max(self._searched, index - _LOOK_BACK) : index][::-1]:
            stamp = None if raw.startswith(_INDENTED) else _read_stamp(raw)
            if stamp is not None:
                self.last = self.clock.record(stamp)
                break
        self._searched = max(self._searched, index)
        return self.last


def _read_stamp(raw: bytes) -> Stamp | None:
    head = raw[:400]
    return strip_prefixes(head.decode("utf-8", "replace")).stamp if _TIME.search(head) else None
