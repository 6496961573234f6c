"""Finds the places of keys and comments of a TOML text in a concrete syntax tree. Edits nothing.

Reads the keys of a table only on demand, so a megabyte of keys costs no more than the requested ones. Walks the tree
with loops, because deep nesting would raise a RecursionError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import tomli
from tree_sitter import Language, Parser, Query, QueryCursor
from tree_sitter_toml import language

from prime_train.core.findings import TextSpan
from prime_train.toml.place import Comment, KeyPath, Place

_TOML = Language(language())
_WRITTEN_CHARS = 60  # longer values are shortened in messages
_READ_BYTES = 4000  # read per value for a message; longer texts are mostly white space
_PUNCTUATION = frozenset({"[", "]", ",", "{", "}", "comment", "ERROR"})


class TableHeader(NamedTuple):
    """A [table] or [[array of tables]] line, or the root table, which has no line."""

    path: KeyPath
    node: Any
    names: KeyPath  # the path as written: without array indices
    is_element: bool


class Statement(NamedTuple):
    """A `key = value`: the full path of the key, its written part, and the nodes of pair, key and value."""

    path: KeyPath
    names: KeyPath
    pair: Any
    key: Any
    value: Any


class _Elements(NamedTuple):
    """An array of tables: the number of its elements so far, and the arrays below its last element."""

    size: list[int]
    below: dict[str | int, _Elements]


@lru_cache(maxsize=4)
def positions(text: str) -> Positions:
    return Positions(text)


class Positions:
    """The places of one text."""

    def __init__(self, text: str) -> None:
        self.source = text.encode()
        self._root = Parser(_TOML).parse(self.source).root_node
        self._columns = _Columns(self.source)
        self.headers: dict[KeyPath, TableHeader] = {}
        arrays: dict[str | int, _Elements] = {}
        for node in self._root.children:
            if node.type in ("table", "table_array_element") and len(node.children) >= 3:
                names = _names(node.children[1])
                path = _path(names, arrays, node.type == "table_array_element")
                self.headers.setdefault(path, TableHeader(path, node, names, node.type == "table_array_element"))
        self.headers.setdefault((), TableHeader((), self._root, (), False))
        self._pairs: dict[KeyPath, _Pairs] = {}  # by the path of their table
        self._items: dict[KeyPath, list[Any]] = {}
        self._first_below: dict[KeyPath, TableHeader] | None = None

    def place(self, key: KeyPath) -> Place | None:
        """The place of `key`; None if it is missing, or only the prefix of a longer dotted key."""
        header = self.headers.get(key) or self.headers.get((*key, 0))  # an array of tables has the place of its first
        if header is not None:
            return self._header_place(header) if key else None
        found = self.find(key)
        return None if found is None else self._place(found.key, found.value)

    def first_below(self, key: KeyPath) -> Place | None:
        """The place of the first header below `key`, for a key without its own header; None if there is none."""
        if self._first_below is None:
            self._first_below = {}
            for path, header in self.headers.items():
                for length in range(1, len(path)):
                    self._first_below.setdefault(path[:length], header)
        first = self._first_below.get(key)
        return None if first is None else self._header_place(first)

    def _header_place(self, header: TableHeader) -> Place:
        span = self._columns.span(header.node.children[0].start_point, header.node.children[2].end_point)
        return Place(span, span, "")

    def find(self, key: KeyPath) -> Statement | None:
        """The statement that sets `key`, in a table or an inline table. For an array item, both are the item."""
        for length in range(len(key) - 1, -1, -1):
            header = self.headers.get(key[:length])
            if header is not None:
                found = self._within(header, key)
                if found is not None:
                    return found
        return None

    def statements(self, header: TableHeader) -> Mapping[KeyPath, Statement]:
        """The statements under a header, by their path relative to it."""
        return self._pairs_of(header.node, header.path).all()

    def inner(self, statement: Statement) -> Mapping[KeyPath, Statement]:
        """The statements in an inline table; empty for any other value."""
        return self._pairs_of(statement.value, statement.path).all() if statement.value.type == "inline_table" else {}

    def comments(self) -> tuple[Comment, ...]:
        body_starts = next((child.start_byte for child in self._root.children if child.type != "comment"), None)
        comments = []
        for node in self.comment_nodes(self._root):
            span = self._columns.span(node.start_point, node.end_point)
            on_top = body_starts is None or node.start_byte < body_starts
            comments.append(Comment(span.line, _text(node), on_top, span.column))
        return tuple(comments)

    def comment_nodes(self, node: Any) -> list[Any]:
        found = QueryCursor(Query(_TOML, "(comment) @found")).captures(node).get("found", [])
        return sorted(found, key=lambda comment: comment.start_byte)

    def _within(self, header: TableHeader, key: KeyPath) -> Statement | None:
        """The statement of `key` under a header, also inside inline tables and arrays."""
        pairs, at, below = self._pairs_of(header.node, header.path), header.path, key[len(header.path) :]
        while True:
            found = next(filter(None, (pairs.get(below[:n]) for n in range(1, len(below) + 1))), None)
            if found is None:
                return None
            at, below = found.path, below[len(found.path) - len(at) :]
            while below and found.value.type == "array":
                items = self._items_of(found.value, at)
                number = below[0]
                if not isinstance(number, int) or not 0 <= number < len(items):
                    return None
                at, below = (*at, number), below[1:]
                found = Statement(at, (), items[number], items[number], items[number])
            if not below:
                return found
            if found.value.type != "inline_table":
                return None
            pairs = self._pairs_of(found.value, at)

    def _pairs_of(self, table: Any, path: KeyPath) -> _Pairs:
        if path not in self._pairs:
            self._pairs[path] = _Pairs(table, path)
        return self._pairs[path]

    def _items_of(self, array: Any, path: KeyPath) -> list[Any]:
        if path not in self._items:
            self._items[path] = [node for node in array.children if node.type not in _PUNCTUATION]
        return self._items[path]

    def _place(self, key: Any, value: Any) -> Place:
        read = self.source[value.start_byte : min(value.end_byte, value.start_byte + _READ_BYTES)]
        written = " ".join(read.decode(errors="ignore").split())
        if len(written) > _WRITTEN_CHARS:
            written = written[: _WRITTEN_CHARS - 3] + "..."
        span = self._columns.span
        return Place(span(key.start_point, key.end_point), span(value.start_point, value.end_point), written)


class _Pairs:
    """The statements of one table, by their path relative to it. Reads only as many as needed."""

    def __init__(self, table: Any, path: KeyPath) -> None:
        self._path = path
        self._unread = _pair_nodes(table)
        self._read: dict[KeyPath, Statement] = {}

    def get(self, names: KeyPath) -> Statement | None:
        while names not in self._read:
            pair = next(self._unread, None)
            if pair is None:
                return None
            self._add(pair)
        return self._read[names]

    def all(self) -> Mapping[KeyPath, Statement]:
        for pair in self._unread:
            self._add(pair)
        return self._read

    def _add(self, pair: Any) -> None:
        names = _names(pair.children[0])
        value = next((node for node in pair.children[2:] if node.type != "comment"), pair.children[-1])
        self._read.setdefault(names, Statement((*self._path, *names), names, pair, pair.children[0], value))


def _pair_nodes(table: Any) -> Iterator[Any]:
    """The pairs of a table. tree-sitter-toml 0.7 parses the line breaks of TOML 1.1 in an inline table as errors."""
    for node in table.children:
        if node.type == "pair" and len(node.children) >= 3:
            yield node
        elif node.type == "ERROR":
            yield from (pair for pair in node.children if pair.type == "pair" and len(pair.children) >= 3)


def _path(names: KeyPath, arrays: dict[str | int, _Elements], is_element: bool) -> KeyPath:
    """The path of a header, with array indices: in the second element, `data.sources` is data.sources.1."""
    if not arrays and not is_element:
        return names
    path: list[str | int] = []
    level: dict[str | int, _Elements] | None = arrays
    for depth, name in enumerate(names):
        path.append(name)
        if level is None:
            continue
        if is_element and name not in level:
            level[name] = _Elements([0], {})
        if name not in level:
            level = None
            continue
        entry = level[name]
        if is_element and depth == len(names) - 1:
            entry.size[0] += 1
            entry.below.clear()
        if entry.size[0]:
            path.append(entry.size[0] - 1)
        level = entry.below
    return tuple(path)


def _names(node: Any) -> KeyPath:
    """The names in a key node."""
    if node.type == "bare_key":  # the common case, up to 100,000 times in a megabyte
        return (_text(node),)
    names: list[str] = []
    stack = [node]
    while stack:
        current = stack.pop()
        match current.type:
            case "bare_key":
                names.append(_text(current))
            case "quoted_key":
                names.append(_unquote(_text(current)))
            case _:
                stack.extend(reversed(current.children))
    return tuple(names)


def _text(node: Any) -> str:
    content: bytes = node.text
    return content.decode(errors="replace")


def _unquote(key: str) -> str:
    try:
        return next(iter(tomli.loads(f"{key} = 0")))
    except tomli.TOMLDecodeError:
        return key


class _Columns:
    """Turns tree-sitter's rows and byte columns into lines and character columns from 1."""

    def __init__(self, source: bytes) -> None:
        self._lines = source.split(b"\n")
        self._wide: dict[int, list[int]] = {}  # row -> at each byte, the count of continuation bytes before it

    def span(self, start: tuple[int, int], end: tuple[int, int]) -> TextSpan:
        return TextSpan(start[0] + 1, self._column(*start), end[0] + 1, self._column(*end))

    def _column(self, row: int, byte: int) -> int:
        """Takes constant time, because a file may have one line of a megabyte."""
        line = self._lines[row]
        if row not in self._wide:
            self._wide[row] = [] if line.isascii() else [0, *accumulate(value & 0xC0 == 0x80 for value in line)]
        wide = self._wide[row]
        return byte + 1 - (wide[byte] if wide else 0)
