"""Writes the parts of a Markdown page: tables, words on one line, dates. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prime_train.views.printable import printable

_ROWS = 20  # of a table; the middle of a longer one is left out


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; of a long one the beginning and the end."""
    shown = [list(row) for row in rows]
    if len(shown) > _ROWS:
        left_out = f"({len(shown) - _ROWS} more)"
        shown = [*shown[: _ROWS // 2], [left_out] + [""] * (len(header) - 1), *shown[-_ROWS // 2 :]]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(plain(cell).replace("|", "\\|") for cell in row) + " |" for row in shown]
    return "\n".join(lines)


def plain(words: str) -> str:
    """On one line, without a full stop of its own."""
    return " ".join(printable(words).split()).rstrip(".")


def fenced(body: str) -> str:
    """A block of text as it is, whatever fences stand in it."""
    fence = "`" * max(3, _longest_run(body, "`") + 1)
    return f"{fence}text\n{body}\n{fence}"


def _longest_run(words: str, character: str) -> int:
    longest = current = 0
    for each in words:
        current = current + 1 if each == character else 0
        longest = max(longest, current)
    return longest


def date(time_s: float | None) -> str:
    """Of seconds since the epoch; empty where it is not known."""
    return "" if time_s is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def plural(count: int) -> str:
    return "" if count == 1 else "s"
