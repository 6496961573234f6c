"""Finds the lines worth scanning: those with one of several hundred words, and no repetitions. Parses nothing.

Python's `re` tries each word at each position: 80 s for 100 MB. The regex engine of pydantic-core searches for all
words at once in linear time, and pydantic is a dependency anyway. Measured: bench/diagnose.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from pydantic_core import SchemaValidator, core_schema

_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$#&~-])")

# Lines that are scanned although no signature has their words: tracebacks and unknown errors.
ERRORS = (
    r"traceback \(most recent call last",
    r"^[^a-z\n]{0,60}\b(?:error|critical|fatal|exception)\b",  # a level after a time
    r"\berror \d\d-\d\d ",  # after the process, as vLLM writes it
    r"[-|\[(]\s{0,9}(?:error|critical|fatal)\s{0,9}[-|\])]",
    r"\be\d{3,4} \d\d:",
    r'"(?:error|critical|fatal)"',
    r"^\S{0,80}(?:error|exception)(?::|$)",
    r": [ef] \S{1,120}:\d+\] ",
    r"^exception in thread |^aborted\b",
    r"\bpanic: |\bpanicked at |^(?:\S{1,80}\] )?check failed: ",
    r"^(?:srun|sbatch|salloc|slurmstepd): error: |:\d{1,7}(?::\d{1,5})?: (?:fatal )?error: ",
    r"[a-z](?:error|exception): ",  # an exception after any prefix
    r'", line \d+, in ',  # a frame, where the top of its traceback is cut off
)


def holds_any(literals: Iterable[str], patterns: Iterable[str] = ()) -> Callable[[str], bool]:
    """A function that checks whether a lower-case text holds a literal or matches a simple pattern.

    ^ and $ match at line ends.
    """
    # Two searches: as one, the automaton outgrows its cache on texts without words (base64, hexadecimal), and then
    # runs at a thousandth of its speed.
    words = _search(_SPECIAL.sub(r"\\\1", literal) for literal in sorted(set(literals)))
    rules = _search(patterns)
    if words is None or rules is None:
        return words or rules or (lambda _: False)
    return lambda text: words(text) or rules(text)


def _search(alternatives: Iterable[str]) -> Callable[[str], bool] | None:
    any_of = "|".join(alternatives)
    if not any_of:
        return None
    schema = core_schema.str_schema(pattern=f"(?m){any_of}", regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python


is_error = holds_any((), ERRORS)


# Differs from one repetition to the next: times, ids, addresses, measured and long numbers. Short numbers are kept,
# because Xid 79 is not Xid 13.
_CHANGING = re.compile(r"\d[\da-f:.,-]{2,}[\da-f]|\d\.\d+")
_FULL_SCANS = 5  # repetitions that are scanned while the log shows no progress; a signature may need three
_RESCAN_AFTER = 200  # lines after which a repetition is scanned again: the cause of an end is searched near the end
_RESCAN_GAP = 50  # lines between two such scans
_LONGEST = 1000  # characters; longer lines are always scanned
_MOST_KEPT = 20_000  # normalized lines
_MOST_LINES = 200  # of a traceback
_CONNECTORS = ("during handling of the above exception", "the above exception was the direct cause")
_TRACEBACK = "traceback (most recent call last"


def normalize(lowered: str) -> str:
    """The lower-case line with "#" for each part that changes from one repetition to the next."""
    return _CHANGING.sub("#", lowered)


class RepeatFilter:
    """The recent lines and tracebacks of one log."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int, int]] = {}  # hash of a text -> count, line last scanned, progress there
        self._rescanned_at = 0

    def skips_line(self, lowered: str, at: int, done: int) -> bool:
        """Whether line number `at` need not be scanned.

        `done`: the log's progress before it; after new progress a line does not count as a repetition.
        """
        return len(lowered) <= _LONGEST and self._is_repeated(hash(normalize(lowered)), at, done)

    def count_skipped(self, lines: Sequence[str], index: int, at: int, done: int) -> int:
        """The number of lines of the repeated traceback that starts at `lines[index]`; 0 where it must be scanned."""
        size = _count_traceback_lines(lines, index)
        if size and self._is_repeated(hash(tuple(map(normalize, lines[index : index + size]))), at, done):
            return size
        return 0

    def _is_repeated(self, key: int, at: int, done: int) -> bool:
        count, last, then = self._seen.get(key, (0, 0, done))
        if then != done:
            count = 0
        if count >= _FULL_SCANS:
            if at - last < _RESCAN_AFTER or at - self._rescanned_at < _RESCAN_GAP:
                return True
            self._rescanned_at = at
        if len(self._seen) >= _MOST_KEPT:
            self._seen.clear()
        self._seen[key] = (count + 1, at, done)
        return False


def _count_traceback_lines(lines: Sequence[str], index: int) -> int:
    """Lines of a traceback with its whole chain; 0 where `lines` lacks a part or has other lines in between."""
    before = normalize(lines[index][: lines[index].find(_TRACEBACK)])
    end = index + 1
    last = min(len(lines) - 1, index + _MOST_LINES)
    while True:
        end = _skip_frames(lines, end, last, before)
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


def _skip_frames(lines: Sequence[str], start: int, last: int, before: str) -> int:
    """The index after the frames, their exception and its indented message lines; 0 where no exception follows."""
    end = start
    while end < last and _is_indented(lines[end], before):
        end += 1
    if end == start or end >= last or not _after_prefix(lines[end], before):
        return 0
    end += 1
    while end < last and _is_indented(lines[end], before):
        end += 1
    return end if end < last else 0


def _after_prefix(line: str, before: str) -> str:
    """The line after the prefix `before`; empty where it has another prefix."""
    if not before:
        return line
    text = normalize(line)
    return text[len(before) :] if text.startswith(before) else ""


def _is_indented(line: str, before: str) -> bool:
    return _after_prefix(line, before).startswith(" ")
