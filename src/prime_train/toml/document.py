"""A TOML text with its values and the place of every key. Reads no files, changes no text.

tomli decides what is valid TOML and returns the values. Places come from a concrete syntax tree, built only on demand,
so a file without findings never imports tree-sitter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from copy import deepcopy
from datetime import date, time
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import tomli

from prime_train.core.findings import Patch, TextSpan
from prime_train.toml.place import Comment as Comment
from prime_train.toml.place import KeyPath as KeyPath
from prime_train.toml.place import Place as Place
from prime_train.toml.place import Places

_LARGE_CHARS = 100_000
_MAX_KEY_PARTS = 64
_MAX_DOTTED_PARTS = 50_000  # for each, tomli keeps two tables of over a kilobyte (measured: tomli 2.5)
_MAX_HEADERS = 50_000  # as many, for the same reason
_LONG_KEY = (
    r"""(?m)^[ \t]*\[{0,2}[ \t]*((?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){%d})""" % _MAX_KEY_PARTS  # noqa: UP031
)
_DOTTED_KEY = r"(?m)^[^=#\n]*\.[^=#\n]*"
_HEADER = r"(?m)^[ \t]*\["


class SyntaxFault(NamedTuple):
    """Why the text is not TOML, and the place of the fault."""

    what: str
    span: TextSpan
    fix: str = ""  # "" if the line itself must be corrected


class WrittenPlaces(NamedTuple):
    """The places and comments of a text in another language than TOML."""

    places: Mapping[KeyPath, Place]
    all_comments: tuple[Comment, ...]

    def place(self, key: KeyPath) -> Place | None:
        return self.places.get(key)

    def first_below(self, key: KeyPath) -> None:
        """None, because each key of such a text has its own place."""

    def comments(self) -> tuple[Comment, ...]:
        return self.all_comments


class Document(NamedTuple):
    """A parsed text. If it is not TOML, `fault` is set and `values` are those of the valid statements."""

    text: str
    path: str
    values: Mapping[str, Any]
    fault: SyntaxFault | None = None
    readable: str = ""  # with a fault: the text, with blanks in place of the invalid statements
    written: Places | None = None  # for a text in another language

    @classmethod
    def parse(cls, text: str, path: str) -> Document:
        if len(text) > _LARGE_CHARS and (excess := _find_excess(text)) is not None:
            return cls(text, path, {}, excess)
        try:
            return cls(text, path, tomli.loads(text))
        except tomli.TOMLDecodeError as error:
            from prime_train.toml.partial_parse import describe_duplicate, locate_fault, parse_valid_part

            values, readable = parse_valid_part(text, error)
            duplicate = describe_duplicate(text, error)
            fix = "keep one of the two" if duplicate else ""
            fault = SyntaxFault(duplicate or error.msg, locate_fault(text, error), fix)
            return cls(text, path, values, fault, readable)
        except RecursionError as error:  # tomli limits nesting
            return cls(text, path, {}, SyntaxFault(str(error), _span_at(text, 0, 1)))
        except ValueError as error:  # an integer with too many digits for Python
            match = re.search(r"[0-9_]{4000,}", text)
            start, end = match.span() if match else (0, 1)
            return cls(text, path, {}, SyntaxFault(str(error).partition(";")[0], _span_at(text, start, end)))

    def place(self, key: KeyPath) -> Place | None:
        """The place of `key`; None if it is missing, or only the prefix of a longer dotted key."""
        return self._places().place(key)

    def nearest(self, key: KeyPath) -> Place | None:
        """The place of `key`, else of the first table below it, else of the closest parent; None if there is none.

        The values of a command, or of a file inside a script, have a place of their own as the last parent.
        """
        places, prefixes = self._places(), (key[:length] for length in range(len(key), 0, -1))
        found = next(filter(None, (places.place(path) or places.first_below(path) for path in prefixes)), None)
        return found or (places.place(()) if isinstance(places, WrittenPlaces) else None)

    def comments(self) -> tuple[Comment, ...]:
        return self._places().comments()

    def _places(self) -> Places:
        if self.written is not None:
            return self.written
        from prime_train.toml.syntax_tree import positions  # lazy, so a file without findings never imports tree-sitter

        return positions(self.readable or self.text)


def _find_excess(text: str) -> SyntaxFault | None:
    """Why a large text is refused before parsing: its keys would need too much memory."""
    found = re.search(_LONG_KEY, text)
    if found is not None:
        what = f"a key of more than {_MAX_KEY_PARTS} parts"
        return SyntaxFault(what, _span_at(text, found.start(1), found.start(1) + 1))
    dots = 0
    for line in re.finditer(_DOTTED_KEY, text):
        dots += line.group().count(".")
        if dots > _MAX_DOTTED_PARTS:
            what = f"more than {_MAX_DOTTED_PARTS} parts of dotted keys"
            return SyntaxFault(what, _span_at(text, line.start(), line.start() + 1))
    header = next(islice(re.finditer(_HEADER, text), _MAX_HEADERS, None), None)
    if header is not None:
        return SyntaxFault(f"more than {_MAX_HEADERS} tables", _span_at(text, header.start(), header.start() + 1))
    return None


def _span_at(text: str, start: int, end: int) -> TextSpan:
    """The span of text[start:end], which is on one line."""
    line = text.count("\n", 0, start) + 1
    column = start - (text.rfind("\n", 0, start) + 1) + 1
    return TextSpan(line, column, line, column + max(1, end - start))


@lru_cache(maxsize=4096)  # a lint writes the same keys again for each file
def dotted(key: KeyPath) -> str:
    """A key path as text: data.sources.0.path, with quotes if TOML needs them."""
    return ".".join(str(part) if isinstance(part, int) or _is_bare(part) else _quoted(part) for part in key)


def _is_bare(part: str) -> bool:
    return part.isascii() and part.replace("-", "").replace("_", "").isalnum()


# TOML forbids the first; a terminal obeys the others, or shows what follows them in another order.
_UNSHOWN = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _quoted(part: str) -> str:
    text = json.dumps(part, ensure_ascii=False)  # JSON and TOML have the same escapes
    return _UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def to_toml(value: object) -> str:
    """`value` as TOML on one line. Raises TypeError for a type that TOML does not have."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | str():
            return _quoted(value) if isinstance(value, str) else str(value)
        case float():
            if math.isfinite(value):
                return repr(value)
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case date() | time():
            return value.isoformat()
        case list() | tuple():
            return "[" + ", ".join(to_toml(item) for item in value) + "]"
        case Mapping():
            return "{" + ", ".join(f"{dotted((str(key),))} = {to_toml(item)}" for key, item in value.items()) + "}"
        case _:
            raise TypeError(f"TOML has no type for a {type(value).__name__}")


def key_path(key: str, values: Mapping[str, Any]) -> KeyPath:
    """The key path for a text of `dotted`. A number is an array index if the values have an array there."""
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


def count_shared(one: KeyPath, other: KeyPath) -> int:
    """The length of the common start of two key paths."""
    return next(
        (depth for depth, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def value_at(values: Any, path: KeyPath) -> Any:
    """The value at a key path; None if it is missing, because TOML has no null."""
    for part in path:
        if isinstance(values, dict):  # a test for Mapping takes five times as long
            values = values.get(part)
        elif isinstance(values, list):
            values = values[part] if isinstance(part, int) and part < len(values) else None
        else:
            values = values.get(part) if isinstance(values, Mapping) else None
        if values is None:
            return None
    return values


def _parts(key: str) -> list[str]:
    if '"' not in key:
        return key.split(".")
    found = re.findall(r'"(?:[^"\\]|\\.)*"|[^."]+', key)
    return [json.loads(part, strict=False) if part.startswith('"') else part for part in found]


def patched(values: Mapping[str, Any], patch: Patch) -> dict[str, Any]:
    """A copy of `values` with the patch applied: each dotted key is set, or deleted if its value is None."""
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
