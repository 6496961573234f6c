"""A TOML text with positions: the values, and the place of every key. Reads no files, changes no text.

tomli judges what TOML is and gives the values. Where a key stands is read from a concrete syntax tree
(positions.py), and only when asked: a file without findings never imports tree-sitter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import tomli

from prime_train.findings import Patch, Span

KeyPath = tuple[str | int, ...]
_LARGE_CHARS = 100_000
_MAX_KEY_PARTS = 64
_MAX_DOTTED_PARTS = 50_000  # each makes tomli keep two tables, a kilobyte and more (measured: tomli 2.5)
_ENDLESS_KEY = (
    r"""(?m)^[ \t]*\[{0,2}[ \t]*((?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){%d})""" % _MAX_KEY_PARTS  # noqa: UP031
)
_BEFORE_A_VALUE = r"(?m)^[^=#\n]*\.[^=#\n]*"


class SyntaxFault(NamedTuple):
    """Why the text is not TOML, and where that shows first."""

    what: str
    span: Span
    fix: str = ""  # "" where all that helps is to correct the line


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
    column: int = 1


class Written(NamedTuple):
    """Where another parser found the keys and comments of a text that is no TOML."""

    places: Mapping[KeyPath, Place]
    comments: tuple[Comment, ...]


class Document(NamedTuple):
    """Where `fault` says that the text is not TOML, `values` are those of the statements that can be read."""

    text: str
    path: str
    values: Mapping[str, Any]
    fault: SyntaxFault | None = None
    readable: str = ""  # beside a fault: the text with the unreadable statements blanked, every other in its place
    written: Written | None = None  # of a text that is no TOML

    @classmethod
    def parse(cls, text: str, path: str) -> Document:
        if len(text) > _LARGE_CHARS and (endless := _endless(text)) is not None:
            return cls(text, path, {}, endless)
        try:
            return cls(text, path, tomli.loads(text))
        except tomli.TOMLDecodeError as error:
            from prime_train.recovery import fault_span, recovered, said_twice

            values, readable = recovered(text, error)
            twice = said_twice(text, error)
            fault = SyntaxFault(twice or error.msg, fault_span(text, error), "keep one of the two" if twice else "")
            return cls(text, path, values, fault, readable)
        except RecursionError as error:  # tomli's own limit on nesting
            return cls(text, path, {}, SyntaxFault(str(error), _span_at(text, 0, 1)))
        except ValueError as error:  # an integer of more digits than Python reads
            match = re.search(r"[0-9_]{4000,}", text)
            start, end = match.span() if match else (0, 1)
            return cls(text, path, {}, SyntaxFault(str(error).partition(";")[0], _span_at(text, start, end)))

    def place(self, key: KeyPath) -> Place | None:
        """Where `key` is written; None where it is not, or only as the prefix of a longer dotted key."""
        if self.written is not None:
            return self.written.places.get(key)
        from prime_train.positions import positions  # here: a file without findings never imports tree-sitter

        return positions(self.readable or self.text).place(key)

    def nearest(self, key: KeyPath) -> Place | None:
        """The place of `key`, else of the first table below it, else of the closest around it; None where none is."""
        if self.written is not None:
            places = self.written.places
            return next((places[key[:length]] for length in range(len(key), 0, -1) if key[:length] in places), None)
        from prime_train.positions import positions

        at = positions(self.readable or self.text)
        for length in range(len(key), 0, -1):
            place = at.place(key[:length]) or at.first_below(key[:length])
            if place is not None:
                return place
        return None

    def comments(self) -> tuple[Comment, ...]:
        if self.written is not None:
            return self.written.comments
        from prime_train.positions import positions

        return positions(self.readable or self.text).comments()


def _endless(text: str) -> SyntaxFault | None:
    """Why a large text is refused unread: its keys would take more memory than a lint may."""
    found = re.search(_ENDLESS_KEY, text)
    if found is not None:
        what = f"a key of more than {_MAX_KEY_PARTS} parts"
        return SyntaxFault(what, _span_at(text, found.start(1), found.start(1) + 1))
    dots = 0
    for line in re.finditer(_BEFORE_A_VALUE, text):
        dots += line.group().count(".")
        if dots > _MAX_DOTTED_PARTS:
            what = f"more than {_MAX_DOTTED_PARTS} parts of dotted keys"
            return SyntaxFault(what, _span_at(text, line.start(), line.start() + 1))
    return None


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


def key_path(key: str, values: Mapping[str, Any]) -> KeyPath:
    """The key path that `dotted` wrote: a number addresses an array element where the values have an array."""
    path: list[str | int] = []
    around: Any = values
    for part in _parts(key):
        if isinstance(around, list) and part.isdecimal():
            path.append(int(part))
            around = around[int(part)] if int(part) < len(around) else None
        else:
            path.append(part)
            around = around.get(part) if isinstance(around, Mapping) else None
    return tuple(path)


def _parts(key: str) -> list[str]:
    if '"' not in key:
        return key.split(".")
    import json

    found = re.findall(r'"(?:[^"\\]|\\.)*"|[^."]+', key)
    return [json.loads(part, strict=False) if part.startswith('"') else part for part in found]


def patched(values: Mapping[str, Any], patch: Patch) -> dict[str, Any]:
    """A copy of parsed values with the patch applied: each dotted key set, or taken away where None."""
    result: dict[str, Any] = deepcopy(dict(values))
    for key, value in patch.items():
        *tables, last = key_path(key, result)
        table: Any = result
        for part in tables:
            table = table[part] if isinstance(part, int) else table.setdefault(part, {})
        if value is not None:
            table[last] = deepcopy(value)
        elif isinstance(last, int):
            del table[last]
        else:
            table.pop(last, None)
    return result
