"""Follows the output of a trainer, and cuts it into lines: at \\r and \\n, without colours, and none of them long.

A progress bar ends its lines with \\r, and one "line" of it may have megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prime_train.core import outside
from prime_train.diagnose.log_prefix import ANSI

_PIECE_BYTES = 4 * 1024 * 1024  # read at a time
_MOST_BEHIND_BYTES = 64 * 1024 * 1024  # if behind by more, the middle is skipped
LONGEST_LINE = 4096  # characters; the rest of a longer line is left out
_ENDS = re.compile(rb"[\r\n]")


class OutputLines:
    """One growing file of output. A file that was truncated is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._is_cut = False  # the rest is the beginning of a line that is longer than the longest
        self.skipped_bytes = 0  # that were written faster than they could be read

    def take(self, *, is_last: bool = False) -> Iterator[str]:
        """The new whole lines; with `is_last` also one without an end. Nothing for a file that cannot be read."""
        while piece := self._read():
            data = self._rest + piece
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            self._rest = data[end:]
            yield from self._cut(data[:end])
            if len(self._rest) > LONGEST_LINE:
                if not self._is_cut:
                    yield _clean(self._rest)
                self._rest, self._is_cut = b"", True
        if is_last and self._rest:
            yield from self._cut(self._rest + b"\n")
            self._rest = b""

    def _cut(self, data: bytes) -> Iterator[str]:
        for raw in _ENDS.split(data)[:-1]:
            line = "" if self._is_cut else _clean(raw)  # of a cut line the beginning was returned
            self._is_cut = False
            if line:
                yield line

    def _read(self) -> bytes:
        with suppress(OSError), outside.open_regular(self.path) as file:
            size_bytes = file.seek(0, 2)
            if size_bytes < self._offset:
                self._offset, self._rest, self._is_cut = 0, b"", False
            if size_bytes - self._offset > _MOST_BEHIND_BYTES:
                self.skipped_bytes += size_bytes - _PIECE_BYTES - self._offset
                self._offset, self._rest, self._is_cut = size_bytes - _PIECE_BYTES, b"", True
            file.seek(self._offset)
            piece = file.read(_PIECE_BYTES)
            self._offset += len(piece)
            return piece
        return b""


def _clean(raw: bytes) -> str:
    """A line without colours and cursor moves."""
    return ANSI.sub(b"", raw[: 2 * LONGEST_LINE]).decode("utf-8", "replace")[:LONGEST_LINE].rstrip()
