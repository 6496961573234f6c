"""Finds the place in the user's files to which a finding points. Judges nothing."""

from __future__ import annotations

from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Span
from prime_train.toml.document import KeyPath


def locate_syntax_fault(reading: Reading, fault: Fault) -> tuple[str, Span, str]:
    """(path, span, text) of the place where a file cannot be parsed."""
    for part in reading.parts:
        if part.fault is not None and part.fault.what == fault.what:
            return part.path, part.fault.span, ""
    return reading.parts[0].path, Span(1, 1, 1, 1), ""


def locate(reading: Reading, key: KeyPath) -> tuple[str, Span, str]:
    """(path, span, text) of the key and its value, else of the table that should hold it, else of the first line.

    In merged files it is the place whose value counts.
    """
    if not any(key[0] in part.values for part in reading.parts if key):  # saves looking up positions
        return reading.parts[0].path, Span(1, 1, 1, 1), ""
    for part in reading.parts:
        place = part.place(key)
        if place is not None:
            start, end = place.key, place.value
            return part.path, Span(start.line, start.column, end.end_line, end.end_column), place.written
    for part in reading.parts:
        around = part.nearest(key)
        if around is not None:
            return part.path, around.key, ""
    return reading.parts[0].path, Span(1, 1, 1, 1), ""


def key_path(key: str) -> KeyPath:
    """The key path of a dotted key: numbers address array elements."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))
