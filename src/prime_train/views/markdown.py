"""Renders the parts of a Markdown page: tables, one-line texts, dates. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from prime_train.views.sanitize import sanitize

_ROWS = 20  # the middle of a longer table is left out


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a long one is cut to its first and last rows."""
    shown = [list(row) for row in rows]
    if len(shown) > _ROWS:
        left_out = f"({len(shown) - _ROWS} more)"
        shown = [*shown[: _ROWS // 2], [left_out] + [""] * (len(header) - 1), *shown[-_ROWS // 2 :]]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(plain(cell).replace("|", "\\|") for cell in row) + " |" for row in shown]
    return "\n".join(lines)


def plain(words: str) -> str:
    """The text on one line, without a full stop at its end."""
    return " ".join(sanitize(words).split()).rstrip(".")


def fenced(body: str) -> str:
    """A code block; its fence is longer than every run of backquotes in the text."""
    fence = max(["``", *re.findall("`+", body)], key=len) + "`"
    return f"{fence}text\n{body}\n{fence}"


def date(time_s: float | None) -> str:
    """The date of seconds since the epoch; empty for None."""
    return "" if time_s is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
