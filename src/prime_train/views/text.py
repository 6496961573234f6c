"""Parts that several views share: paint, widths, JSON objects, Markdown, text from outside made safe to print. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

Paint = Callable[[str, str], str]  # (text, style) -> text, in colour if the terminal supports it

# C0 and C1 except newline and tab, because an escape sequence in a sample or a log line would control the terminal. And
# what turns the order of letters around, so that a name looks like another one. Source: CVE-2021-42574.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def sanitize(text: str) -> str:
    """`text` with a replacement character for each control character except newlines and tabs."""
    return _CONTROL.sub("\ufffd", text)


def encode_json(document: Any) -> str:
    """The text of a JSON document, with letters of all languages as they are and every control character escaped."""
    import json  # here, because a plain lint does not need it

    text = json.dumps(document, indent=1, ensure_ascii=False)  # escapes those below a space alone
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# What a renderer of Markdown would run or fetch: HTML, and a link or an image whose target is no path below the report.
# A zero-width space separates what stays readable. Source: CommonMark 0.31.2, sections 6.3, 6.5 and 6.6.
_SCHEME = re.compile(r"(?i)\b(javascript|vbscript|data):")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=\((?!\w[\w.-]*(?:/\w[\w.-]*)*\)))|\](?=:)")


def inert(text: str) -> str:
    """`text` without control characters, and without links and HTML that a renderer of Markdown would follow or run."""
    return _SCHEME.sub("\\1\u200b:", _TAG.sub("<\u200b", _LINK.sub("]\u200b", sanitize(text))))


ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours, which take no room
_GAP = re.compile(r" {2,}(?=\S)")  # between a label and its text
_SOURCE = re.compile(r" +\d* \| ")  # a quoted line of a file, or the marks below it
_LABEL_PART = 0.45  # of a line, in which a gap ends a label
_NARROWEST = 12  # columns of text beside an indent


def fit(text: str, columns: int | None, indent: int | None = None) -> str:
    """`text` with lines of at most `columns`, broken between words. Unchanged if `columns` is None.

    What follows a break is indented by `indent` columns, else to where the text begins after its label. A word that is
    longer than a line, as a path, stays whole, so that it can be copied. A quoted line of a file is cut. Lines that
    move the cursor stay as they are.
    """
    if columns is None:
        return text
    return "\n".join(_fit_line(line, columns, indent) for line in text.split("\n"))


def _fit_line(line: str, columns: int, indent: int | None) -> str:
    shown = ANSI.sub("", line)
    if len(shown) <= columns or _CONTROL.search(shown):
        return line
    if _SOURCE.match(shown):
        return shown[: columns - 1].rstrip() + "…"
    if indent is None:
        start = len(shown) - len(shown.lstrip(" "))
        gaps = (gap.end() for gap in _GAP.finditer(shown, start))
        indent = max((end for end in gaps if end <= columns * _LABEL_PART), default=start)
    indent = max(0, min(indent, columns - _NARROWEST))
    lines, used = [""], 0  # `used`: columns of the last line
    for blanks, word in re.findall(r"( *)([^ ]+)", line):
        size = len(ANSI.sub("", word))
        if used + len(blanks) + size <= columns or used <= indent:
            lines[-1] += blanks + word
            used += len(blanks) + size
        else:
            lines.append(" " * indent + word)
            used = indent + size
    return "\n".join(lines)


def pick(source: object, *names: str) -> dict[str, Any]:
    """The named attributes of `source`, in this order, as a JSON object."""
    return {name: getattr(source, name) for name in names}


def rounded(value: float | None, digits: int) -> float | None:
    """The value for a JSON document: null if it is not finite, because JSON has neither nan nor infinity."""
    return round(value, digits) if value is not None and math.isfinite(value) else None


def fixed(value: float | None, digits: int) -> str:
    """A value that `rounded` made as text; "nan" for null."""
    return "nan" if value is None else f"{value:.{digits}f}"


def explain(source: Any) -> list[tuple[str, str]]:
    """The parts what, why and fix that `source` has, each after its name."""
    return [(name, text) for name in ("what", "why", "fix") if (text := getattr(source, name))]


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
    return " ".join(inert(words).split()).rstrip(".")


def fenced(body: str) -> str:
    """A code block; its fence is longer than every run of backquotes in the text."""
    body = inert(body)
    fence = max(["``", *re.findall("`+", body)], key=len) + "`"
    return f"{fence}text\n{body}\n{fence}"


def date(time_s: float | None) -> str:
    """The date of seconds since the epoch; empty for None."""
    return "" if time_s is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
