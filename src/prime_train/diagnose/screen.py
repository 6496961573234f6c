"""Tells which lines of a block may mean something, at the speed of a copy. Parses none of them.

A log says the same few things over and over with other numbers in them. So each line is looked up without its digits
in a set of those that are known to be quiet; only a line not met before is searched. Measured: bench/diagnose.py.
"""

from __future__ import annotations

from collections.abc import Iterable

_DIGITS = b"0123456789"
_MOST_REMEMBERED = 200_000
# Most literals contain one of these, so a line that has none is done with after a few searches instead of hundreds.
# They decide the speed and nothing else: a literal without any of them is searched for itself.
_SIGNS = (
    "error", "exception", "fail", "nan", "kill", "out of memory", "not ", "unable", "cannot", "timed out", "timeout",
    "exit", "died", "no ", "invalid", "n't", "denied", "unexpected", "already", "mismatch", "cuda", "must", "fault",
    "quota", "signal", "requires", "larger", "longer", "greater", "less than", "divisible", "xid", "unrecognized",
    "closed", "reset", "refused", "corrupt", "exceed", "lost", "missing", "memory", "permitted", "nccl", "terminat",
    "preempt", "unreachable", "limit", "expected", "instance", "many ", "duplicate", "hang", "stuck", "illegal",
    "assert", "status_", "unknown", "unsupported", "ibv_", "unauthorized", "too ", "lock", "shutting", "read-only",
    "certificate", "image", "resource", "torch._", "device",
)  # fmt: skip


def key(block: bytes) -> bytes:
    """The block in lower case and without digits: what lines that differ in their numbers have in common."""
    return block.lower().translate(None, _DIGITS)


class Screen:
    """Remembers which lines are quiet."""

    def __init__(self, literals: Iterable[str]) -> None:
        self._literals = tuple(sorted({key(literal.encode()) for literal in literals}, key=len))
        signs = tuple(sign.encode() for sign in _SIGNS)
        uncovered = (literal for literal in self._literals if not any(sign in literal for sign in signs))
        used = (sign for sign in signs if any(sign in literal for literal in self._literals))
        self._first = (*used, *uncovered)
        self.quiet: set[bytes] = set()

    def is_quiet(self, line: bytes) -> bool:
        """Whether the line, given as `key` makes it, holds none of the literals; the answer is kept."""
        if line in self.quiet:
            return True
        if any(sign in line for sign in self._first) and any(literal in line for literal in self._literals):
            return False
        if len(self.quiet) >= _MOST_REMEMBERED:
            self.quiet.clear()
        self.quiet.add(line)
        return True
