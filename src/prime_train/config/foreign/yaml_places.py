"""Where the keys of a YAML or JSON text are, and its comments. Values only."""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

import yaml

from prime_train.core.findings import TextSpan
from prime_train.toml.place import Comment, KeyPath, Place

_COMMENT = re.compile(r"(?:^|(?<=[ \t]))#")


class Repeated(NamedTuple):
    """A key that stands twice in one table. Programs take the last value, or refuse the file."""

    key: KeyPath
    first_line: int
    line: int


class YamlPlaces:
    """The places of the keys of a YAML or JSON text, and its comments, which are searched only on demand."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.keys: dict[KeyPath, tuple[yaml.Mark, yaml.Mark, yaml.Mark, yaml.Mark]] = {}
        self.texts: list[tuple[int, int]] = []  # beginning and end of each scalar: a # inside is no comment
        self.repeated: list[Repeated] = []

    def place(self, key: KeyPath) -> Place | None:
        marks = self.keys.get(key)
        if marks is None:
            return None
        start, end = marks[2].index, marks[3].index
        written = self.text[start:end].rstrip()
        return Place(_span(marks[0], marks[1]), _trimmed(self.text, marks[2], start + len(written)), written)

    def first_below(self, key: KeyPath) -> None:
        """None, because each key of such a text has its own place."""

    def comments(self) -> tuple[Comment, ...]:
        return self._comments

    def offsets(self, key: KeyPath) -> tuple[int, int, int, int] | None:
        """Where key and value begin and end in the text: (key, end of key, value, end of value)."""
        marks = self.keys.get(key)
        return None if marks is None else (marks[0].index, marks[1].index, marks[2].index, marks[3].index)

    @cached_property
    def _comments(self) -> tuple[Comment, ...]:
        first_key = min((marks[0].index for marks in self.keys.values()), default=len(self.text))
        inside = iter(sorted(self.texts))
        start, end = next(inside, (len(self.text), len(self.text)))
        found: list[Comment] = []
        line_start = 0
        for number, line in enumerate(self.text.split("\n"), 1):
            for mark in _COMMENT.finditer(line):
                at = line_start + mark.start()
                while end <= at:
                    start, end = next(inside, (len(self.text), len(self.text) + 1))
                if not start <= at < end:
                    found.append(Comment(number, line[mark.start() :], at < first_key, mark.start() + 1))
                    break
            line_start += len(line) + 1
        return tuple(found)


def _span(start: yaml.Mark, end: yaml.Mark) -> TextSpan:
    return TextSpan(start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def _trimmed(text: str, start: yaml.Mark, end: int) -> TextSpan:
    """The span from a mark to an offset; a block of YAML ends in the line after it, which is not a part of it."""
    last = start.line + 1 + text.count("\n", start.index, end)
    column = end - (text.rfind("\n", 0, end) + 1) + 1
    return TextSpan(start.line + 1, start.column + 1, last, column)
