"""Parses the valid part of a text that is not TOML: replaces each invalid statement with blanks. Repairs nothing.

A statement is invalid if tomli stops in it. Blanks keep the line and the column of every other statement.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice
from typing import Any

import tomli

from prime_train.core.findings import TextSpan

_MAX_FAULTS = 20  # a file with more faults is not a config
_MAX_PARSED_CHARS = 4_000_000  # tomli parses about ten million per second
_STATEMENT = re.compile(r"""\s*(\[\[?[^\[\],{}]+\]\]?\s*(#.*)?$|("[^"]*"|'[^']*'|[\w-])[^=\[\]{},]*=)""")
_HEADER = re.compile(r"\s*\[")
_HEADER_NAME = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY_NAME = re.compile(r"([^=#\[]+)=")
_DUPLICATE = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine")
_NEVER_CLOSED = ("Unclosed", "Unterminated string", "Expected \"'''\"", 'Expected "\'"')


def locate_fault(text: str, error: tomli.TOMLDecodeError) -> TextSpan:
    """The span of one character at the fault.

    tomli reports a duplicate at its end; the span is the start of its line. tomli reports an unclosed value at the next
    statement or at the end of the text; the span is the start of the value.
    """
    lines = text.split("\n")
    line = min(error.lineno, len(lines))
    column = error.colno
    if error.msg.startswith(_DUPLICATE):
        line = _line_of_second(lines, text, error) + 1
        column = _indent(lines[line - 1]) + 1
    elif error.msg.startswith(_NEVER_CLOSED) or (error.msg == "Invalid value" and _STATEMENT.match(lines[line - 1])):
        start = _first_start(text, error.lineno)
        if start is not None and start < line - 1:
            line, column = start + 1, _value_column(lines[start])
    return TextSpan(line, column, line, column + 1)


def describe_duplicate(text: str, error: tomli.TOMLDecodeError) -> str:
    """The duplicate name and the line of its first use; "" for any other fault.

    The line is missing for a table that a dotted key or a table below it has created.
    """
    if not error.msg.startswith(_DUPLICATE):
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
    return f"{name} is defined twice" + (
        f": first in line {first}" if first else ", or inside a key that has a value already"
    )


def _line_of_second(lines: list[str], text: str, error: tomli.TOMLDecodeError) -> int:
    """The first line, from 0, of the duplicate statement. tomli reports its end."""
    at = min(error.lineno, len(lines)) - 1
    if _STATEMENT.match(lines[at]):
        return at
    start = _first_start(text, error.lineno)
    return at if start is None else start


def _plain(name: str) -> str:
    return re.sub(r"\s*\.\s*", ".", name.strip()).replace('"', "").replace("'", "")


def parse_valid_part(text: str, error: tomli.TOMLDecodeError) -> tuple[dict[str, Any], str]:
    """(values, text) without the statements that tomli cannot parse; ({}, "") if that fails."""
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


@lru_cache(maxsize=1)  # two callers need it, and a megabyte takes long
def _first_start(text: str, lineno: int) -> int | None:
    """_statement_start in the original text."""
    lines = text.split("\n")
    return _statement_start(lines, min(lineno, len(lines)) - 1, _MAX_PARSED_CHARS // 2)


def _statement_start(lines: list[str], at: int, budget_chars: int) -> int | None:
    """The first line of the statement in which tomli stops at line `at`: the text above it is the longest valid one.

    Steps back from the fault in growing steps, then bisects; None if that would parse more than the budget.
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
    """The line after the statement: the start of the next one. An invalid header ends with its whole table."""
    another = _HEADER if _HEADER.match(lines[start]) else _STATEMENT
    return next((line for line in range(start + 1, len(lines)) if another.match(lines[line])), len(lines))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _value_column(line: str) -> int:
    """The column of the value in a `key = value` line."""
    _, equals, value = line.partition("=")
    return len(line) - len(value.lstrip()) + 1 if equals else _indent(line) + 1
