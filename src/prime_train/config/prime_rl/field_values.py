"""Reads the values of RunSpec fields from a prime-rl file. Judges nothing.

A field has the file's value, else the default of the generation if the table around it is present. A value with a
fault is not known. The generation's table lists the keys that feed each field.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from typing import Any, NamedTuple

from prime_train.config.prime_rl.schema import SchemaGeneration
from prime_train.config.prime_rl.validate_value import NONE
from prime_train.config.schema import Table, shapes_of
from prime_train.toml.document import KeyPath, dotted, value_at

_WITHOUT_DEFAULT = ("weight_broadcast.trainer_kind", "weight_broadcast.rollout_kind", "weight_broadcast.inference_kind")


class FieldSource(NamedTuple):
    """The input for a RunSpec. `aliased` and `faulty` are results of the walk."""

    generation: SchemaGeneration
    root: str
    values: Mapping[str, Any]
    aliased: Mapping[KeyPath, KeyPath]
    faulty: Set[KeyPath]


def read_fields(source: FieldSource) -> tuple[dict[str, str], dict[str, Any]]:
    """(RunSpec field -> key, RunSpec field -> value) of the fields that are known, without those of environments."""
    keys: dict[str, str] = {}
    known: dict[str, Any] = {}
    for name, candidates in source.generation.feeds.get(source.root, {}).items():
        key, value = _read_field(source, name, candidates)
        if key is not None:
            keys[name], known[name] = key, value
    return keys, known


def _read_field(source: FieldSource, name: str, candidates: list[str]) -> tuple[str | None, Any]:
    """(key, value) of a field: the first candidate that the file sets, else the first default of a candidate.

    The key is None if the file's value has a fault, or the whole part of the file is missing: then the field is not
    known.
    """
    for candidate in candidates:
        mark, path = split_mark(candidate)
        written = _written(source, path)
        value = value_at(source.values, written)
        if value is None:
            continue
        if any(written[: len(fault)] == fault or fault[: len(written)] == written for fault in source.faulty if fault):
            if mark == "?" or isinstance(value, dict):
                return dotted(written), True
            return None, None
        return dotted(written), _apply_mark(mark, None if value == NONE else value)
    return _read_unset(source, name, candidates)


def _read_unset(source: FieldSource, name: str, candidates: list[str]) -> tuple[str | None, Any]:
    """(key, value) of a field that the file does not set."""
    marked = [split_mark(candidate) for candidate in candidates]
    present = [(mark, path) for mark, path in marked if not _is_part_missing(source, path)]
    if not present:
        return None, None
    for mark, path in () if name in _WITHOUT_DEFAULT else present:
        default = _find_default(source, path)
        if default is not None:
            return dotted(_written(source, path)), _apply_mark(mark, default)
    mark, path = present[0]
    return dotted(_written(source, path)), _apply_mark(mark, None)


def _is_part_missing(source: FieldSource, path: KeyPath) -> bool:
    """Whether the file lacks a table that every whole file must have, such as [trainer]: it is in another file."""
    if len(path) < 2 or path[0] in source.values:
        return False
    item = source.generation.roots[source.root].fields.get(str(path[0]))
    return item is not None and item.required


@cache
def split_mark(candidate: str) -> tuple[str, KeyPath]:
    """(mark, key path) of a candidate: "#" means the length of the value, "?" whether it is set."""
    mark = candidate[0] if candidate[0] in "#?" else ""
    return mark, tuple(candidate[len(mark) :].split("."))


def _apply_mark(mark: str, value: Any) -> Any:
    match mark:
        case "#":
            return len(value) if isinstance(value, list | tuple) else None
        case "?":
            return value is not None and value is not False
        case _:
            return value


def _written(source: FieldSource, path: KeyPath) -> KeyPath:
    """The path with the aliases that the file uses."""
    if not source.aliased:
        return path
    written: KeyPath = ()
    for part in path:
        written = source.aliased.get((*written, part), (*written, part))
    return written


def _find_default(source: FieldSource, path: KeyPath) -> Any:
    """The default of a key that the file does not set; None if a table around it is missing and has no default."""
    table: Table | None = source.generation.roots[source.root]
    values: Any = source.values
    for depth, part in enumerate(path):
        item = table.fields.get(str(part)) if table is not None else None
        if table is None or item is None or (item.when and table.member(values) not in item.when):
            return None
        below = values.get(part) if isinstance(values, dict) else None
        table = next((shape for shape in shapes_of(item.shape) if isinstance(shape, Table)), None)
        if depth == len(path) - 1:
            return {} if item.default == () and table is not None else item.default
        if (below is None and item.default is None) or below in (NONE, False):
            return None
        values = below if isinstance(below, dict) else {}
    return None
