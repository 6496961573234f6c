"""Walks the values of a file along its schema, of any format: collects every fault and builds the value. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from prime_train.config.parsed_config import OUT_OF_BOUNDS, Fault
from prime_train.config.schema import Array, Field, Map, Number, Shape, Table, shapes_of
from prime_train.toml.document import KeyPath, dotted

REFUSED: Any = object()  # stands for a value that could not be read; its fault is in the list
_MAX_FAULTS = 20  # that are reported for one array


class Walk(Protocol):
    """The faults of one walk, and what a format has of its own."""

    faults: list[Fault]
    judges_each: bool  # whether each wrong element of an array of plain values is a fault, or only the first one

    def find(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Field | None:
        """The field that reads the key at `at`. None, with a fault in the list, for a key that is not legal here."""

    def judge(self, item: Field, value: Any, at: KeyPath) -> Iterable[Fault]:
        """The faults of a value that no table below it judges."""

    def find_missing(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Iterable[Fault]:
        """A fault for each key that the table must have, and does not."""


def walk_table(walk: Walk, table: Table, values: Mapping[str, Any], at: KeyPath = ()) -> Any:
    """The value that the table makes. A field with a fault takes its default.

    It is REFUSED if a required field is missing or has a fault.
    """
    read: dict[str, Any] = {}
    for key, value in values.items():
        item = walk.find(table, values, (*at, key))
        if item is not None and (made := _walk_value(walk, item, value, (*at, key))) is not REFUSED:
            read[item.name] = made
    walk.faults.extend(walk.find_missing(table, values, at))
    return table.make(**read) if all(item.name in read for item in table.required()) else REFUSED


def _walk_value(walk: Walk, item: Field, value: Any, at: KeyPath) -> Any:
    """The value in the field's type, or REFUSED with a fault in the list."""
    for shape in shapes_of(item.shape):
        match shape:
            case Table() if isinstance(value, dict):
                return walk_table(walk, shape, value, at)
            case Map(item=Table() as entry) if isinstance(value, dict):
                return {name: _walk_value(walk, _entry(item, entry), each, (*at, name)) for name, each in value.items()}
            case Array() if isinstance(value, list) and (walk.judges_each or isinstance(shape.item, Table)):
                return _walk_array(walk, item, shape, value, at)
    faults = list(walk.judge(item, value, at))
    walk.faults.extend(faults)
    if faults:
        return REFUSED
    is_whole_for_float = isinstance(value, int) and isinstance(item.shape, Number) and not item.shape.whole
    return float(value) if is_whole_for_float else value


def _walk_array(walk: Walk, item: Field, shape: Array, values: list[Any], at: KeyPath) -> Any:
    if len(values) < shape.min_len:
        what = f"{dotted(at)} has {len(values)} entries; at least {shape.min_len} must be there"
        walk.faults.append(Fault(OUT_OF_BOUNDS, at, what, f"add an entry to {dotted(at)}"))
        return REFUSED
    before, built = len(walk.faults), []
    for number, value in enumerate(values):
        if len(walk.faults) - before >= _MAX_FAULTS:
            return REFUSED
        built.append(_walk_value(walk, _entry(item, shape.item), value, (*at, number)))
    return REFUSED if any(each is REFUSED for each in built) else tuple(built)


def _entry(item: Field, shape: Shape) -> Field:
    """The field of one element of an array or a map."""
    return Field(item.name, item.key, shape, item.doc, None)
