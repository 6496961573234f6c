"""Tells which lines of a log say again what was said just before, so that a flood of one error costs little. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What differs from one telling to the next: times, ids, addresses, measured and long numbers. Short ones stay: Xid 79
# is not Xid 13.
_CHANGING = re.compile(r"\d[\da-f:.,-]{2,}[\da-f]|\d\.\d+")
_IN_FULL = 5  # tellings that are looked at, at the same state of the work; a signature may want three
_LOOK_AGAIN = 200  # lines after which one is looked at all the same: an end wants to know what stands near before it
_LOOK_APART = 50  # lines between two such looks, whatever at
_LONGEST = 1000  # characters; longer lines are always looked at
_MOST_KEPT = 20_000  # shapes
_MOST_LINES = 200  # of a traceback
_CONNECTORS = ("during handling of the above exception", "the above exception was the direct cause")
_TRACEBACK = "traceback (most recent call last"


def shape(lowered: str) -> str:
    """The line (in lower case) without what changes from one telling to the next."""
    return _CHANGING.sub("#", lowered)


class Again:
    """What one log said lately."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, int, int]] = {}  # hash of a shape -> how often, last looked at, work by then
        self._looked_again = 0

    def line(self, lowered: str, at: int, done: int) -> bool:
        """Whether line number `at` need not be looked at. `done`: how much progress the log had shown by then; what
        comes after more of it is no repeat."""
        return len(lowered) <= _LONGEST and self._is_told(hash(shape(lowered)), at, done)

    def traceback(self, lines: Sequence[str], index: int, at: int, done: int) -> int:
        """How many lines the traceback takes that begins at `lines[index]`; 0 where it has to be looked at."""
        size = _length(lines, index)
        if size and self._is_told(hash(tuple(map(shape, lines[index : index + size]))), at, done):
            return size
        return 0

    def _is_told(self, key: int, at: int, done: int) -> bool:
        count, last, then = self._told.get(key, (0, 0, done))
        if then != done:
            count = 0
        if count >= _IN_FULL:
            if at - last < _LOOK_AGAIN or at - self._looked_again < _LOOK_APART:
                return True
            self._looked_again = at
        if len(self._told) >= _MOST_KEPT:
            self._told.clear()
        self._told[key] = (count + 1, at, done)
        return False


def _length(lines: Sequence[str], index: int) -> int:
    """Lines of the traceback, with its whole chain, where all of it stands here and nobody wrote in between; else 0."""
    begun = lines[index].find(_TRACEBACK)
    before = shape(lines[index][:begun])
    end = index + 1
    last = min(len(lines) - 1, index + _MOST_LINES)
    while True:
        end = _past_frames(lines, end, last, before)
        if not end:
            return 0
        following = end
        while following < last and not lines[following].strip():
            following += 1
        if not any(words in lines[following] for words in _CONNECTORS):
            return end - index
        end = following + 1
        while end < last and not lines[end].strip():
            end += 1
        if _TRACEBACK not in lines[end]:
            return 0
        end += 1


def _past_frames(lines: Sequence[str], start: int, last: int, before: str) -> int:
    """Behind the exception that ends these frames, and behind the indented lines of its message; 0 where none does."""
    end = start
    while end < last and _is_indented(lines[end], before):
        end += 1
    if end == start or end >= last or not _rest(lines[end], before):
        return 0
    end += 1
    while end < last and _is_indented(lines[end], before):
        end += 1
    return end if end < last else 0


def _rest(line: str, before: str) -> str:
    """What a line says behind the same prefix; empty where it has another."""
    if not before:
        return line
    said = shape(line)
    return said[len(before) :] if said.startswith(before) else ""


def _is_indented(line: str, before: str) -> bool:
    return _rest(line, before).startswith(" ")
