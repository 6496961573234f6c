"""Where the keys and comments of a text are. Parses nothing."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.core.findings import TextSpan

KeyPath = tuple[str | int, ...]


class Place(NamedTuple):
    """The spans of a key and its value, and the value's text as written."""

    key: TextSpan
    value: TextSpan
    written: str


class Comment(NamedTuple):
    """A comment. `on_top`: no key and no table is above it."""

    line: int
    text: str
    on_top: bool
    column: int = 1
