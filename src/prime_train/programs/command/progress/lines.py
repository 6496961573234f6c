"""Cuts the bytes of a log into lines: at line feeds and carriage returns, behind progress bars, without colours. Pure.

A progress bar has no line feed, so the whole run may be one line of many megabytes. A line is kept to 16 KiB.
"""

from __future__ import annotations

import re

from prime_train.diagnose.encoding import Encoding
from prime_train.diagnose.log_prefix import ANSI

LONGEST_LINE = 16 * 1024
_ENDS = re.compile(rb"[\r\n]")
# A bar ends with times, "[00:04<00:07,  1.68it/s]". What follows is another bar or another message.
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\|[^\[\]]{0,80}\[[^\[\]]{0,2000}\]")


class LineSplitter:
    """Returns complete lines. A line that is cut anywhere gives the same text."""

    def __init__(self) -> None:
        self._rest = b""
        self._encoding = Encoding()

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes complete, without empty ones."""
        return self._split(self._encoding.decode(data))

    def finish(self) -> list[str]:
        """The last line, where it has no end."""
        lines = self._split(self._encoding.finish())
        rest, self._rest = self._rest, b""
        return lines + _clean(rest)

    def _split(self, data: bytes) -> list[str]:
        *complete, last = _ENDS.split(data)
        lines: list[str] = []
        for piece in complete:
            lines += _clean((self._rest + piece[:LONGEST_LINE])[:LONGEST_LINE])
            self._rest = b""
        self._rest = (self._rest + last[:LONGEST_LINE])[:LONGEST_LINE]
        return lines


def _clean(line: bytes) -> list[str]:
    """The texts of a line: a progress bar and what another program wrote behind it are two."""
    text = ANSI.sub(b"", line).decode("utf-8", "replace")
    parts, start = [], 0
    for bar in _BAR.finditer(text) if "%|" in text else ():
        parts.append(text[start : bar.end()])
        start = bar.end()
    return [part for part in (*parts, text[start:]) if part.strip()]
