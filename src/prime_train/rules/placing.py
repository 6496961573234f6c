"""Finds where in the user's files a finding stands. Reads nothing but what a dialect has read, judges nothing."""

from __future__ import annotations

from prime_train.dialects.reading import Fault, Reading
from prime_train.document import KeyPath
from prime_train.findings import Span


def unreadable(reading: Reading, fault: Fault) -> tuple[str, Span, str]:
    """Where a file is not TOML."""
    for part in reading.parts:
        if part.fault is not None and part.fault.what == fault.what:
            return part.path, part.fault.span, ""
    return reading.parts[0].path, Span(1, 1, 1, 1), ""


def placed(reading: Reading, key: KeyPath) -> tuple[str, Span, str]:
    """Where a finding points: the key and its value, else the table that should hold it, else the first line.

    Of files that are merged, the one whose word counts.
    """
    if not any(key[0] in part.values for part in reading.parts if key):  # and no position need be looked for
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
    parts = key.split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts)
