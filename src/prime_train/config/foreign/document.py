"""Reads YAML and JSON into documents with the place of every key.

Opens no file, builds no object but texts, numbers, lists and tables.

YAML is read as PyYAML reads it, because the programs do: 1e-5 is a text, `no` is false, and the last of two equal keys
counts. Events are turned into values one by one, so that depth and size are limited before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from prime_train.config.foreign.values import MOST_BYTES
from prime_train.config.foreign.yaml_places import Repeated, YamlPlaces
from prime_train.core.findings import TextSpan
from prime_train.toml.document import Document, KeyPath, SyntaxFault

_MOST_DEPTH = 64
_MOST_VALUES = 200_000  # aliases count as what they stand for, so that none of them can explode
_MOST_DOCUMENTS = 16

_JSON_EXPONENT = re.compile(r"-?\d+(?:\.\d+)?[eE][-+]?\d+")
# What is opened and never closed is taken whole: to try again at each sign of it would take minutes.
_JSON_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*|/\*(?:[\s\S]*?\*/|[\s\S]*)')
_MOST_DIGITS = 100  # of a number; in base 60, 1:30:00, the time to read one grows with the square of its length
# Possessive, because a comment of many words can be divided in many ways.
_JSON_START = re.compile(r"(?:\s|//[^\n]*+|#[^\n]*+|/\*[\s\S]*?\*/)*+[{\[]")
_PREFIX = "tag:yaml.org,2002:"
_FIXES = {
    "\t": "indent with blanks: YAML does not allow a tab there",
    "%": "put the value in quotes",
    "@": "put the value in quotes",
    "`": "put the value in quotes",
    "{": "put the value in quotes",
}


class _Unreadable(Exception):
    """Why a text is not read. `mark` is the place in the text."""

    def __init__(self, what: str, mark: yaml.Mark, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.mark, self.fix = what, mark, fix


class _Table:
    """A table or list that is being read."""

    def __init__(self, value: dict[str, Any] | list[Any], path: KeyPath, event: yaml.Event) -> None:
        self.value = value
        self.path = path
        self.start = event.start_mark
        self.anchor: str | None = event.anchor
        self.key: str | None = None  # of a table: the key whose value comes next
        self.key_marks = (event.start_mark, event.start_mark)
        self.size = 1


class _Builder:
    """Turns the events of one YAML document into values and places."""

    def __init__(self, text: str, *, is_json: bool) -> None:
        self.places = YamlPlaces(text)
        self._is_json = is_json
        self._open: list[_Table] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = 0
        self.root: Any = None

    def take(self, event: yaml.Event) -> None:
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                table = self._open.pop()
                self._add(table.value, table.anchor, table.start, event.end_mark, table.size)
            case yaml.ScalarEvent():
                self._take_scalar(event)
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise _Unreadable(f"no anchor &{event.anchor} stands above its alias", event.start_mark)
                value, size = self._anchors[event.anchor]
                self._add(value, None, event.start_mark, event.end_mark, size)

    def _begin(self, event: yaml.Event) -> None:
        if len(self._open) >= _MOST_DEPTH:
            raise _Unreadable(f"it nests deeper than {_MOST_DEPTH} tables", event.start_mark)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if self._open and isinstance(self._open[-1].value, dict) and self._open[-1].key is None:
            raise _Unreadable("a key is a table or a list", event.start_mark, _FIXES["{"])
        self._open.append(_Table({} if is_mapping else [], self._path(), event))

    def _path(self) -> KeyPath:
        """The key path of the value that comes next."""
        if not self._open:
            return ()
        table = self._open[-1]
        return (*table.path, len(table.value) if isinstance(table.value, list) else table.key or "")

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        self.places.texts.append((event.start_mark.index, event.end_mark.index))
        table = self._open[-1] if self._open else None
        if table is not None and isinstance(table.value, dict) and table.key is None:
            table.key, table.key_marks = event.value, (event.start_mark, event.end_mark)
            return
        is_plain = event.implicit[0] and not event.style
        value = self._typed(event.value) if is_plain else _tagged(event)
        self._add(value, event.anchor, event.start_mark, event.end_mark, 1)

    def _typed(self, text: str) -> Any:
        if self._is_json and _JSON_EXPONENT.fullmatch(text):
            return float(text)
        return plain_scalar(text)

    def _add(self, value: Any, anchor: str | None, start: yaml.Mark, end: yaml.Mark, size: int) -> None:
        if anchor:
            self._anchors[anchor] = (value, size)
        self._count += size
        if not self._open:
            self.root = value
            return
        table = self._open[-1]
        table.size += size
        if max(self._count, table.size) > _MOST_VALUES:
            raise _Unreadable(f"it has more than {_MOST_VALUES} values, aliases included", start)
        if isinstance(table.value, list):
            self.places.keys[(*table.path, len(table.value))] = (start, end, start, end)
            table.value.append(value)
            return
        key, table.key = table.key or "", None
        if key == "<<" and _is_mergeable(value):
            self._merge(table.value, value if isinstance(value, list) else [value])
            return
        path = (*table.path, key)
        before = self.places.keys.get(path)
        if before is not None:
            lines = before[0].line + 1, table.key_marks[0].line + 1
            self.places.repeated.append(Repeated(path, *lines))
        self.places.keys[path] = (*table.key_marks, start, end)
        table.value[key] = value

    def _merge(self, table: dict[str, Any], others: list[dict[str, Any]]) -> None:
        """Add the keys of `<<: *anchor` that the table does not have above; those below it replace them."""
        for other in others:
            for name in other.keys() - table.keys():
                table[name] = other[name]


def read_documents(text: str, path: str) -> tuple[Document, ...]:
    """The documents of a YAML or JSON text whose top is a table. One with a fault is the last, and holds no values."""
    if len(text) > MOST_BYTES:
        what = f"it has {len(text)} characters, and a config has fewer than {MOST_BYTES}"
        return (Document(text, path, {}, SyntaxFault(what, TextSpan(1, 1, 1, 2))),)
    clean = _JSON_COMMENT.sub(_blank, text) if is_json(text) and "/" in text else text
    found: list[Document] = []
    try:
        for builder in _build(clean, is_json=is_json(text)):
            if isinstance(builder.root, dict):
                document = Document(text, path, builder.root, written=builder.places)
                found.append(document)  # one by one, because those above a fault are kept
    except _Unreadable as error:
        found.append(_faulty(text, path, error.what, error.mark, error.fix))
    except yaml.MarkedYAMLError as error:
        what, fix = _describe(error, clean)
        found.append(_faulty(text, path, what, error.problem_mark or error.context_mark, fix))
    except yaml.YAMLError as error:  # a character that YAML does not allow
        line, column = _line_and_column(text, getattr(error, "position", 0))
        what = "a character that YAML does not allow"
        found.append(Document(text, path, {}, SyntaxFault(what, TextSpan(line, column, line, column + 1))))
    return tuple(found)


def _build(text: str, *, is_json: bool) -> Iterator[_Builder]:
    builder = _Builder(text, is_json=is_json)
    count = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        builder.take(event)
        if isinstance(event, yaml.DocumentEndEvent):
            yield builder
            count += 1
            if count == _MOST_DOCUMENTS:
                return
            builder = _Builder(text, is_json=is_json)


def is_json(text: str) -> bool:
    """Whether a text begins as JSON does, below its comments. Such a text is read as YAML, too."""
    return _JSON_START.match(text) is not None


def plain_scalar(text: str) -> Any:
    """The value of a word without quotes in YAML 1.1: a number, true, null or a text. Dates stay texts."""
    if len(text) > _MOST_DIGITS:
        return text
    for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], ()):
        if pattern.match(text):
            return _construct(tag.removeprefix(_PREFIX), text)
    return text


def _construct(kind: str, text: str) -> Any:
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() in ("yes", "true", "on")
        case "int" | "float":
            node = yaml.ScalarNode(_PREFIX + kind, text)
            construct = _CONSTRUCTOR.construct_yaml_int if kind == "int" else _CONSTRUCTOR.construct_yaml_float
            return construct(node)
        case _:
            return text


_CONSTRUCTOR = yaml.constructor.SafeConstructor()


def _tagged(event: yaml.ScalarEvent) -> Any:
    """The value of a scalar in quotes or with a tag. A tag that YAML does not define leaves the text."""
    kind = (event.tag or "").removeprefix(_PREFIX)
    return _construct(kind, event.value) if kind in ("int", "float", "bool", "null") else event.value


def _is_mergeable(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(each, dict) for each in value))


# --- faults ---------------------------------------------------------------------------


def _faulty(text: str, path: str, what: str, mark: yaml.Mark | None, fix: str) -> Document:
    span = (
        TextSpan(1, 1, 1, 2)
        if mark is None
        else TextSpan(mark.line + 1, mark.column + 1, mark.line + 1, mark.column + 2)
    )
    return Document(text, path, {}, SyntaxFault(what, span, fix))


def _describe(error: yaml.MarkedYAMLError, text: str) -> tuple[str, str]:
    """(what is wrong, what to do) in words that need no knowledge of a YAML parser."""
    mark, problem = error.problem_mark, error.problem or ""
    here = text[mark.index : mark.index + 1] if mark is not None else ""
    if here == "\t":
        return "a tab begins the line", _FIXES["\t"]
    if "mapping values" in problem:
        return "a second colon in one line", "put the value in quotes, or begin a line for the second key"
    if "cannot start any token" in problem:
        return f"a value begins with {here}", _FIXES.get(here, "put the value in quotes")
    if "unexpected end of stream" in problem:
        return "a quote or bracket is opened and never closed", "close it"
    return "the line does not fit the lines above it", "compare its indent, quotes and brackets with the line above"


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _blank(found: re.Match[str]) -> str:
    """A comment of JSON as blanks of the same length, so that no place moves."""
    text = found.group()
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)
