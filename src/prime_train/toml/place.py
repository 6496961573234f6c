"""Where the keys and comments of a text are. Parses nothing."""

from __future__ import annotations

from typing import NamedTuple, Protocol

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


class Places(Protocol):
    """Where the keys and comments of one text are."""

    def place(self, key: KeyPath) -> Place | None:
        """The place of a key; None if the text has none."""

    def first_below(self, key: KeyPath) -> Place | None:
        """The place of the first table below a key that has no place of its own."""

    def comments(self) -> tuple[Comment, ...]:
        """All comments, from the first line to the last."""
