"""A TOML text with positions: the values, and the place of every key. Reads no files, changes no text.

tomli judges what TOML is and gives the values. Where a key stands is read from a concrete syntax tree,
and only when asked: a file without findings never imports tree-sitter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import tomli

from prime_train.findings import Patch, Span

KeyPath = tuple[str | int, ...]
_WRITTEN_CHARS = 60  # a value longer than this is shortened in messages


class SyntaxFault(NamedTuple):
    """Why the text is not TOML, and where that shows first."""

    what: str
    span: Span


class Place(NamedTuple):
    """Where one key stands: the key, its value, and the value's text as written."""

    key: Span
    value: Span
    written: str


class Comment(NamedTuple):
    """A comment. `on_top` when no key and no table stands above it."""

    line: int
    text: str
    on_top: bool


class Document(NamedTuple):
    """`values` is empty where `fault` says that the text is not TOML."""

    text: str
    path: str
    values: Mapping[str, Any]
    fault: SyntaxFault | None = None

    @classmethod
    def parse(cls, text: str, path: str) -> Document:
        try:
            return cls(text, path, tomli.loads(text))
        except tomli.TOMLDecodeError as error:
            return cls(text, path, {}, SyntaxFault(error.msg, _fault_span(text, error)))
        except RecursionError as error:  # tomli's own limit on nesting
            return cls(text, path, {}, SyntaxFault(str(error), _span_at(text, 0, 1)))
        except ValueError as error:  # an integer of more digits than Python reads
            match = re.search(r"[0-9_]{4000,}", text)
            start, end = match.span() if match else (0, 1)
            return cls(text, path, {}, SyntaxFault(str(error).partition(";")[0], _span_at(text, start, end)))

    def place(self, key: KeyPath) -> Place | None:
        """Where `key` is written; None where it is not, or only as the prefix of a longer dotted key."""
        return _index(self.text).places.get(key)

    def nearest(self, key: KeyPath) -> Place | None:
        """The place of `key`, else of the closest table around it that is written; None where none is."""
        places = _index(self.text).places
        for length in range(len(key), 0, -1):
            if key[:length] in places:
                return places[key[:length]]
        return None

    def comments(self) -> tuple[Comment, ...]:
        return _index(self.text).comments


def _fault_span(text: str, error: tomli.TOMLDecodeError) -> Span:
    """One character at the fault. A duplicate is noticed at its end and shown at the start of its line."""
    lines = text.split("\n")
    line = min(error.lineno, len(lines))
    column = error.colno
    if error.msg.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine")):
        content = lines[line - 1]
        column = len(content) - len(content.lstrip()) + 1
    return Span(line, column, line, column + 1)


def _span_at(text: str, start: int, end: int) -> Span:
    """The span of text[start:end], which lies on one line."""
    line = text.count("\n", 0, start) + 1
    column = start - (text.rfind("\n", 0, start) + 1) + 1
    return Span(line, column, line, column + max(1, end - start))


def dotted(key: KeyPath) -> str:
    """A key path as people write it: data.sources.0.path, with quotes where TOML needs them."""
    return ".".join(str(part) if isinstance(part, int) or _is_bare(part) else _quoted(part) for part in key)


def _is_bare(part: str) -> bool:
    return part.isascii() and part.replace("-", "").replace("_", "").isalnum()


def _quoted(part: str) -> str:
    import json  # JSON's escapes are TOML's; a clean lint does not need them

    return json.dumps(part, ensure_ascii=False).replace("\x7f", "\\u007f")


def to_toml(value: object) -> str:
    """`value` as TOML on one line. Raises TypeError for what TOML cannot hold."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | str():
            return _quoted(value) if isinstance(value, str) else str(value)
        case float():
            if math.isfinite(value):
                return repr(value)
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case list() | tuple():
            return "[" + ", ".join(to_toml(item) for item in value) + "]"
        case Mapping():
            return "{" + ", ".join(f"{dotted((str(key),))} = {to_toml(item)}" for key, item in value.items()) + "}"
        case _:
            raise TypeError(f"TOML cannot hold a {type(value).__name__}")


def patched(values: Mapping[str, Any], patch: Patch) -> dict[str, Any]:
    """A copy of parsed values with the patch applied: each dotted key set, or taken away where None."""
    result: dict[str, Any] = deepcopy(dict(values))
    for key, value in patch.items():
        *tables, last = key.split(".")
        table: Any = result
        for part in tables:
            table = table[int(part)] if isinstance(table, list) else table.setdefault(part, {})
        if value is not None:
            table[last] = deepcopy(value)
        else:
            table.pop(last, None)
    return result


# --- positions -----------------------------------------------------------------------------------


class _Index(NamedTuple):
    places: Mapping[KeyPath, Place]
    comments: tuple[Comment, ...]


@lru_cache(maxsize=4)
def _index(text: str) -> _Index:
    """Every key and comment of a text. The tree is walked with a stack: nesting must not end in a RecursionError."""
    from tree_sitter import Language, Parser
    from tree_sitter_toml import language

    root = Parser(Language(language())).parse(text.encode()).root_node
    columns = _Columns(text)
    places: dict[KeyPath, Place] = {}
    comments: list[Comment] = []
    elements: dict[KeyPath, int] = {}  # array of tables -> how many of its elements have begun
    body_starts = next((child.start_byte for child in root.children if child.type != "comment"), math.inf)
    stack: list[tuple[Any, KeyPath]] = [(root, ())]
    while stack:
        node, base = stack.pop()
        children = node.children
        match node.type:
            case "comment":
                comments.append(
                    Comment(node.start_point[0] + 1, node.text.decode(errors="replace"), node.start_byte < body_starts)
                )
            case "table" | "table_array_element":
                key = _header_key(_key_parts(children[1]), elements, node.type == "table_array_element")
                header = columns.span(children[0].start_point, children[2].end_point)
                places.setdefault(key, Place(header, header, ""))
                stack.extend((child, key) for child in reversed(children[3:]))
            case "pair":
                key = base + _key_parts(children[0])
                value = next((c for c in children[2:] if c.type != "comment"), children[-1])
                places.setdefault(key, _place(columns, children[0], value))
                stack.append((value, key))
                stack.extend((child, base) for child in children[2:] if child.type == "comment")
            case "array":
                items = [child for child in children if child.type not in ("[", "]", ",", "comment")]
                for number, item in enumerate(items):
                    places.setdefault((*base, number), _place(columns, item, item))
                stack.extend((item, (*base, number)) for number, item in enumerate(items))
                stack.extend((child, base) for child in children if child.type == "comment")
            case _:
                stack.extend((child, base) for child in reversed(children))
    return _Index(places, tuple(sorted(comments, key=lambda comment: comment.line)))


def _place(columns: _Columns, key: Any, value: Any) -> Place:
    written = " ".join(value.text.decode(errors="replace").split())
    if len(written) > _WRITTEN_CHARS:
        written = written[: _WRITTEN_CHARS - 3] + "..."
    return Place(
        columns.span(key.start_point, key.end_point), columns.span(value.start_point, value.end_point), written
    )


def _header_key(key: KeyPath, elements: dict[KeyPath, int], starts_element: bool) -> KeyPath:
    """The path a [table] or [[array of tables]] header opens: `data.sources` becomes data.sources.0."""
    path: KeyPath = ()
    for depth, part in enumerate(key):
        path = (*path, part)
        last = depth == len(key) - 1
        if last and starts_element:
            elements[path] = elements.get(path, 0) + 1
        if path in elements:
            path = (*path, elements[path] - 1)
    return path


def _key_parts(node: Any) -> KeyPath:
    """The names in a key node. A dotted_key nests to the left."""
    parts: list[str] = []
    stack = [node]
    while stack:
        current = stack.pop()
        match current.type:
            case "bare_key":
                parts.append(current.text.decode(errors="replace"))
            case "quoted_key":
                parts.append(_unquoted(current.text.decode(errors="replace")))
            case _:
                stack.extend(reversed(current.children))
    return tuple(parts)


def _unquoted(key: str) -> str:
    try:
        return next(iter(tomli.loads(f"{key} = 0")))
    except tomli.TOMLDecodeError:
        return key


class _Columns:
    """Turns tree-sitter's rows and byte columns into lines and character columns from 1."""

    def __init__(self, text: str) -> None:
        self._lines = text.encode().split(b"\n")
        self._wide: dict[int, list[int]] = {}  # row -> how many bytes before each byte start no character

    def span(self, start: tuple[int, int], end: tuple[int, int]) -> Span:
        return Span(start[0] + 1, self._column(*start), end[0] + 1, self._column(*end))

    def _column(self, row: int, byte: int) -> int:
        """Each in constant time: a file may be one line of a megabyte."""
        line = self._lines[row]
        if row not in self._wide:
            self._wide[row] = [] if line.isascii() else [0, *accumulate(value & 0xC0 == 0x80 for value in line)]
        wide = self._wide[row]
        return byte + 1 - (wide[byte] if wide else 0)
