"""Formats the output of commands: four-part messages, tables, colour. Prints nothing.

Does not use rich, because `lint` and `--help` must start in a tenth of a second.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Container, Iterable, Sequence
from typing import Any, TextIO

from prime_train.core.errors import UserError
from prime_train.views.text import Paint, explain, sanitize

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_LEAST_CUT = 8  # letters that a cut text keeps
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def color_wanted(stream: TextIO) -> bool:
    """Whether `stream` is a terminal with colour, and NO_COLOR is unset. Source: no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, style: str, stream: TextIO) -> str:
    """`text` in the named style ("bold", "red" ...) if `stream` shows colour, else unchanged."""
    if not color_wanted(stream):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def painter(stream: TextIO) -> Paint:
    """A function that paints a text in a style for `stream`, for the views."""
    return lambda text, style: paint(text, style, stream)


def message(error: UserError, stream: TextIO) -> str:
    """The four parts of an error, as lines: where, what, why, fix."""
    parts = [
        f"  {paint(f'{label:<4}', 'dim', stream)}  {text}".replace("\n", "\n        ") for label, text in explain(error)
    ]
    return "\n".join([f"{paint('error:', 'red', stream)} {error.where}", *parts])


def json_text(document: Any) -> str:
    """The text of a --json document, with letters of all languages as they are, and secrets masked in its strings."""
    import json  # here, because a plain lint does not need it

    from prime_train.core.own_secrets import own_secrets
    from prime_train.core.redaction import redact_all

    return json.dumps(redact_all(document, own_secrets()), indent=1, ensure_ascii=False)


def terminal_columns(stream: TextIO) -> int | None:
    """The width of the terminal behind `stream`; None for a file or a pipe, which gets whole lines."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def table(
    rows: Iterable[Sequence[str]],
    header: Sequence[str],
    right: Container[int] = (),
    columns: int | None = None,
    least_needed: Sequence[int] = (),
) -> str:
    """Columns two spaces apart, right-aligned where their index is in `right`. No trailing blanks.

    With `columns`, lines are at most that long if they can be: the columns `least_needed` are left out one after
    another, then the longest texts are cut.
    """
    whole = [list(header), *(list(row) for row in rows)]
    widths = [max(len(_ANSI.sub("", row[column])) for row in whole) for column in range(len(header))]
    if columns is not None:
        kept = _columns_that_fit(widths, columns, least_needed)
        right = frozenset(place for place, column in enumerate(kept) if column in right)
        whole, widths = [[row[column] for column in kept] for row in whole], [widths[column] for column in kept]
        widths = _cut_widths(widths, columns, right)
        whole = [[_cut(text, width) for text, width in zip(row, widths, strict=True)] for row in whole]

    def cell(text: str, column: int) -> str:
        padding = " " * (widths[column] - len(_ANSI.sub("", text)))
        return padding + text if column in right else text + padding

    return "\n".join("  ".join(cell(text, column) for column, text in enumerate(row)).rstrip() for row in whole)


def _columns_that_fit(widths: Sequence[int], columns: int, least_needed: Sequence[int]) -> list[int]:
    kept = list(range(len(widths)))
    for column in least_needed:
        if sum(widths[index] + 2 for index in kept) - 2 <= columns:
            break
        kept.remove(column)
    return kept


def _cut_widths(widths: Sequence[int], columns: int, right: Container[int]) -> list[int]:
    """Widths with which a line fits: the longest text loses letters first, and numbers lose none."""
    found = list(widths)
    texts = [index for index in range(len(found)) if index not in right]
    while sum(found) + 2 * (len(found) - 1) > columns and texts:
        longest = max(texts, key=lambda index: found[index])
        if found[longest] <= _LEAST_CUT:
            break
        found[longest] -= 1
    return found


def _cut(text: str, width: int) -> str:
    plain = _ANSI.sub("", text)
    return text if len(plain) <= width else plain[: width - 1] + "…"


def labelled(title: str, lines: Sequence[tuple[str, str]], stream: TextIO) -> str:
    """A title and, indented below it, one label and text per line; further lines of a text stay in its column."""
    width = max((len(label) for label, _ in lines), default=0)
    indent = "\n" + " " * (width + 4)
    rows = [
        f"  {paint(f'{label:<{width}}', 'dim', stream)}  {sanitize(text.rstrip()).replace(chr(10), indent)}"
        for label, text in lines
    ]
    return "\n".join([paint(title, "bold", stream), *rows])
