"""Formats the output of commands: four-part messages, tables, colour. Prints nothing.

Does not use rich, because `lint` and `--help` must start in a tenth of a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, TextIO

from prime_train.core.errors import UserError
from prime_train.views.text import ANSI, Paint, encode_json, explain, fit, sanitize

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PAINT = re.compile(rf"(\x1b\[(?:0|{'|'.join(_CODES.values())})m)")
_LEAST_CUT = 8  # letters that a cut text keeps
_PIECE = re.compile(r"[^ /_.,:-]*[ /_.,:-]?")  # where a word may be broken: after these characters
_WORD = re.compile(r"\S+")
_USUAL_COLUMNS = 80


def color_wanted(stream: TextIO) -> bool:
    """Whether NO_COLOR is unset, and `stream` is a terminal with colour or FORCE_COLOR is set.

    Source: no-color.org, force-color.org; FORCE_COLOR=0 forces nothing, as in Node.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()


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
        f"  {paint(f'{label:<4}', 'dim', stream)}  {sanitize(text)}".replace("\n", "\n        ")
        for label, text in explain(error)
    ]
    where = sanitize(error.where).replace("\n", " ")
    return fit_terminal("\n".join([f"{paint('error:', 'red', stream)} {where}", *parts]), stream)


def json_text(document: Any) -> str:
    """The text of a --json document, with letters of all languages as they are, and secrets masked in its strings."""
    from prime_train.core.redaction import own_secrets, redact_all

    return encode_json(redact_all(document, own_secrets()))


def terminal_columns(stream: TextIO) -> int | None:
    """The width of the terminal behind `stream`; None for a file or a pipe, which gets whole lines."""
    if not stream.isatty():
        return None
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal() and int(chosen) > 0:
        return int(chosen)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS


def fit_terminal(text: str, stream: TextIO) -> str:
    """`text` with its lines broken between words to the width of the terminal behind `stream`, else unchanged."""
    return fit(text, terminal_columns(stream))


def table(
    rows: Iterable[Sequence[str]],
    header: Sequence[str],
    right: Container[int] = (),
    columns: int | None = None,
    least_needed: Sequence[int] = (),
) -> str:
    """Columns two spaces apart, right-aligned where their index is in `right`. No trailing blanks.

    With `columns`, lines are at most that long if they can be: the columns `least_needed` are left out one after
    another, then the longest texts are broken between words, then after one of "/_.,:-", and then cut.
    """
    whole = [list(header), *(list(row) for row in rows)]
    if not all(map(str.isprintable, chain.from_iterable(whole))):  # what is painted, or comes from outside
        whole = [[_plain_cell(text) for text in row] for row in whole]
    widths = [max(_width(row[column]) for row in whole) for column in range(len(header))]
    if columns is not None:
        kept = _columns_that_fit(widths, columns, least_needed)
        right = frozenset(place for place, column in enumerate(kept) if column in right)
        whole, widths = [[row[column] for column in kept] for row in whole], [widths[column] for column in kept]
        widths = _narrow(whole, widths, columns, right)
        whole = [line for row in whole for line in _break_row(row, widths)]

    # Column by column, because a call for each cell takes three times as long, and a list may have 30,000 rows.
    padded = [
        _pad([row[column] for row in whole], width, to_right=column in right) for column, width in enumerate(widths)
    ]
    return "\n".join(["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)])


def _plain_cell(text: str) -> str:
    """`text` on one line, without control characters but the colours of `paint`."""
    parts = _PAINT.split(text.replace("\n", " ").replace("\t", " "))
    return "".join([part if _PAINT.fullmatch(part) else sanitize(part) for part in parts])


def _pad(texts: Sequence[str], width: int, *, to_right: bool) -> list[str]:
    """The texts of a column with blanks up to `width`, before them with `to_right` and else after them."""
    blanks = " " * width
    if to_right:
        return [blanks[_width(text) :] + text for text in texts]
    return [text + blanks[_width(text) :] for text in texts]


def _width(text: str) -> int:
    return len(ANSI.sub("", text) if "\x1b" in text else text)  # the search takes longer than a look


def _columns_that_fit(widths: Sequence[int], columns: int, least_needed: Sequence[int]) -> list[int]:
    kept = list(range(len(widths)))
    for column in least_needed:
        if sum(widths[index] + 2 for index in kept) - 2 <= columns:
            break
        kept.remove(column)
    return kept


def _narrow(rows: Sequence[Sequence[str]], widths: Sequence[int], columns: int, right: Container[int]) -> list[int]:
    """Widths with which a line fits. The longest text loses room first, and numbers lose none.

    No column is narrower than its longest word as long as that is enough, then than the longest piece of a word.
    """
    found = list(widths)
    texts = [index for index in range(len(found)) if index not in right]
    for unbroken in (_WORD, _PIECE, None):
        floors = {index: _floor([row[index] for row in rows], unbroken) for index in texts}
        while sum(found) + 2 * (len(found) - 1) > columns:
            wide = [index for index in texts if found[index] > floors[index]]
            if not wide:
                break
            found[max(wide, key=lambda index: found[index])] -= 1
    return found


def _floor(texts: Sequence[str], unbroken: re.Pattern[str] | None) -> int:
    parts = (part.rstrip() for text in texts for part in (unbroken.findall(ANSI.sub("", text)) if unbroken else ()))
    return max([_LEAST_CUT, *map(len, parts)])


def _break_row(row: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """The lines of a row, each with one text per column."""
    cells = [_break_cell(text, width) for text, width in zip(row, widths, strict=True)]
    return [list(line) for line in zip_longest(*cells, fillvalue="")]


def _break_cell(text: str, width: int) -> list[str]:
    plain = ANSI.sub("", text)
    if len(plain) <= width:
        return [text]
    lines = [""]
    for word in plain.split():
        rest = word
        if lines[-1] and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        while len(rest) > width and (place := rest.rstrip("/_.,:-")[:width]) and (end := _last_piece(place)):
            lines[-1] = rest[:end]
            lines.append("")
            rest = rest[end:]
        lines[-1] = rest if len(rest) <= width else rest[: width - 1] + "…"
    return lines


def _last_piece(text: str) -> int:
    """The place after the last character at which a word may be broken; 0 if there is none."""
    return max(text.rfind(character) for character in "/_.,:-") + 1


def labelled(title: str, lines: Sequence[tuple[str, str]], stream: TextIO) -> str:
    """A title and, indented below it, one label and text per line; further lines of a text stay in its column."""
    width = max((len(label) for label, _ in lines), default=0)
    indent = "\n" + " " * (width + 4)
    rows = [
        f"  {paint(f'{label:<{width}}', 'dim', stream)}  {sanitize(text.rstrip()).replace(chr(10), indent)}"
        for label, text in lines
    ]
    return "\n".join(
        [paint(sanitize(title), "bold", stream), fit("\n".join(rows), terminal_columns(stream), width + 4)]
    )
