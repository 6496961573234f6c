"""Reads what can be read of a text that is not TOML: blanks one unreadable statement after another. Repairs nothing.

tomli stays the judge: a statement is unreadable where tomli stops in it. Blanks take the place of what is
taken out, so that everything else keeps its line and column.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice
from typing import Any

import tomli

from prime_train.findings import Span

_MAX_FAULTS = 20  # a file with more is something else than a config
_MAX_PARSED_CHARS = 4_000_000  # tomli reads about ten million in a second
_STATEMENT = re.compile(r"""\s*(\[\[?[^\[\],{}]+\]\]?\s*(#.*)?$|("[^"]*"|'[^']*'|[\w-])[^=\[\]{},]*=)""")
_HEADER = re.compile(r"\s*\[")
_HEADER_NAME = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY_NAME = re.compile(r"([^=#\[]+)=")
_NOTICED_AT_ITS_END = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine")
_NEVER_CLOSED = ("Unclosed", "Unterminated string", "Expected \"'''\"", 'Expected "\'"')


def fault_span(text: str, error: tomli.TOMLDecodeError) -> Span:
    """One character at the fault.

    A duplicate is noticed at its end and shown at the start of its line. What is never closed is noticed
    where the next statement stands, or at the end of the text, and shown where its value begins.
    """
    lines = text.split("\n")
    line = min(error.lineno, len(lines))
    column = error.colno
    if error.msg.startswith(_NOTICED_AT_ITS_END):
        line = _line_of_second(lines, text, error) + 1
        column = _indent(lines[line - 1]) + 1
    elif error.msg.startswith(_NEVER_CLOSED) or (error.msg == "Invalid value" and _STATEMENT.match(lines[line - 1])):
        start = _first_start(text, error.lineno)
        if start is not None and start < line - 1:
            line, column = start + 1, _value_column(lines[start])
    return Span(line, column, line, column + 1)


def said_twice(text: str, error: tomli.TOMLDecodeError) -> str:
    """What is there twice, as written, and where it is first; "" where the fault is another one.

    A table that was opened by a dotted key or by a table below it has no line of its own to name.
    """
    if not error.msg.startswith(_NOTICED_AT_ITS_END):
        return ""
    lines = text.split("\n")
    at = _line_of_second(lines, text, error)
    if header := _HEADER_NAME.match(lines[at]):
        name, above = f"[{_plain(header[1])}]", enumerate(lines[:at], 1)
        same = ((number, _HEADER_NAME.match(line)) for number, line in above)
    else:
        name = _plain(lines[at].partition("=")[0])
        opened = next((number for number in range(at, 0, -1) if _HEADER.match(lines[number - 1])), 0)
        same = ((number, _KEY_NAME.match(lines[number - 1])) for number in range(opened + 1, at + 1))
    first = next((number for number, match in same if match and _plain(match[1]) == name.strip("[]")), None)
    return f"{name} is there twice" + (f": first in line {first}" if first else ", or within what has a value already")


def _line_of_second(lines: list[str], text: str, error: tomli.TOMLDecodeError) -> int:
    """The line, counted from 0, where the statement begins at whose end tomli noticed a duplicate."""
    at = min(error.lineno, len(lines)) - 1
    if _STATEMENT.match(lines[at]):
        return at
    start = _first_start(text, error.lineno)
    return at if start is None else start


def _plain(name: str) -> str:
    return re.sub(r"\s*\.\s*", ".", name.strip()).replace('"', "").replace("'", "")


def recovered(text: str, error: tomli.TOMLDecodeError) -> tuple[dict[str, Any], str]:
    """(values, text) without the statements that tomli cannot read; ({}, "") where nothing can be saved."""
    lines = text.split("\n")
    parsed_chars = 0
    for fault in range(_MAX_FAULTS):
        budget = _MAX_PARSED_CHARS - parsed_chars
        at = min(error.lineno, len(lines)) - 1
        start = _statement_start(lines, at, budget // 2) if fault else _first_start(text, error.lineno)
        if start is None or parsed_chars + len(text) > _MAX_PARSED_CHARS:
            return {}, ""
        end = _statement_end(lines, start)
        lines[start:end] = [" " * len(line.rstrip("\r")) + "\r" * line.endswith("\r") for line in lines[start:end]]
        parsed_chars += len(text)
        try:
            readable = "\n".join(lines)
            return tomli.loads(readable), readable
        except tomli.TOMLDecodeError as next_error:
            error = next_error
        except (RecursionError, ValueError):
            return {}, ""
    return {}, ""


@lru_cache(maxsize=1)  # the fault is shown where the reading starts: both look for it, and a megabyte takes long
def _first_start(text: str, lineno: int) -> int | None:
    """_statement_start in a text from which nothing is taken out."""
    lines = text.split("\n")
    return _statement_start(lines, min(lineno, len(lines)) - 1, _MAX_PARSED_CHARS // 2)


def _statement_start(lines: list[str], at: int, budget_chars: int) -> int | None:
    """The first line of the statement in which tomli stops at line `at`: all above it is TOML, and nothing more.

    Searched in growing steps back from the fault, then by halves; None where that would parse too much.
    """
    back = (line for line in range(at, 0, -1) if line == at or _STATEMENT.match(lines[line]))
    starts = [next(back, 0)]
    refused, reach, step = -1, 0, 1

    def is_toml_above(line: int) -> bool:
        nonlocal budget_chars
        above = "\n".join([*lines[:line], ""])
        budget_chars -= len(above)
        return budget_chars >= 0 and _is_toml(above)

    while starts[reach] > 0 and not is_toml_above(starts[reach]):
        further = list(islice(back, step))
        starts.extend(further if len(further) == step else [*further, 0])
        refused, reach, step = reach, len(starts) - 1, step * 2
    while reach - refused > 1:
        middle = (reach + refused) // 2
        refused, reach = (refused, middle) if is_toml_above(starts[middle]) else (middle, reach)
    return starts[reach] if budget_chars >= 0 else None


def _is_toml(text: str) -> bool:
    try:
        tomli.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _statement_end(lines: list[str], start: int) -> int:
    """The line after the statement: where another seems to begin. Without its header a table goes as a whole."""
    another = _HEADER if _HEADER.match(lines[start]) else _STATEMENT
    return next((line for line in range(start + 1, len(lines)) if another.match(lines[line])), len(lines))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _value_column(line: str) -> int:
    """The column where the value of a `key = value` line begins."""
    _, equals, value = line.partition("=")
    return len(line) - len(value.lstrip()) + 1 if equals else _indent(line) + 1
