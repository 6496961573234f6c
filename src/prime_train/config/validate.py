"""Validates the values of a run.toml or a recipe: builds the value and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prime_train.config.parsed_config import MISSING_KEY, OUT_OF_BOUNDS, SYNTAX, UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Field, Map, Number, Shape, Table, field_name, shapes_of
from prime_train.config.validate_value import describe_unknown, expected, name_table, value_fault
from prime_train.toml.document import Document, KeyPath, dotted

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


_MAX_GUESSES = 200  # unknown keys that are compared with every legal key; a file with more is not a config
_MAX_UNKNOWN = 2000  # unknown keys that are reported, because a million of them take seconds


class _RunTomlWalk:
    """The input and the faults of one walk. `other_names`: the section of registry/other_names.toml, "" for none."""

    judges_each = True

    def __init__(self, root: Table, values: Mapping[str, Any], other_names: str, whole: bool) -> None:
        self.root, self.values, self.other_names, self.whole = root, values, other_names, whole
        self.faults: list[Fault] = []
        self.unknown = 0

    def find(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Field | None:
        item = table.fields.get(str(at[-1]))
        if item is None:
            self.unknown += 1
            if self.unknown <= _MAX_UNKNOWN:
                self.faults.append(_unknown(self, table, at, values[str(at[-1])]))
        return item

    def judge(self, item: Field, value: Any, at: KeyPath) -> Iterator[Fault]:
        fault = value_fault(item.shape, value, at, item.default)
        if fault is not None:
            yield fault

    def find_missing(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Iterator[Fault]:
        if self.whole:
            yield from (_missing(item, (*at, item.key)) for item in table.required() if item.key not in values)


def walk(root: Table, values: Mapping[str, Any], other_names: str, *, whole: bool = True) -> tuple[Any, list[Fault]]:
    """(the value that `root` makes, every fault). A field with a fault takes its default.

    The value is None if a field without a default is missing or has a fault. Only a `whole` file misses keys.
    """
    state = _RunTomlWalk(root, values, other_names, whole)
    built = walk_table(state, root, values)
    faults = [
        fault if fault.code == UNKNOWN_KEY else fault._replace(shadows=field_name(root, fault.key))
        for fault in state.faults
    ]
    return (None if built is REFUSED else built), faults


def walk_document(root: Table, document: Document, other_names: str) -> tuple[Any, list[Fault]]:
    """`walk` over a document. If it is not valid TOML, the value is None and missing keys are not faults."""
    built, faults = walk(root, document.values, other_names, whole=document.fault is None)
    if document.fault is None:
        return built, faults
    fix = document.fault.fix or "correct the line; what stands in it is unread"
    return None, [Fault(SYNTAX, (), document.fault.what, fix), *faults]


def _missing(item: Field, at: KeyPath) -> Fault:
    key = dotted(at)
    match item.shape:
        case Table() as table:
            required = ", ".join(each.key for each in table.required())
            header = name_table(at)
            what, fix = f"the table {header} is missing", f"add {header} with {required}"
        case Array(item=Table()):
            what, fix = f"{key} is missing", f"add a {name_table((*at, 0))} table"
        case shape:
            what, fix = f"{key} is missing", f"{key} = ...: {expected(shape)}. {item.doc}"
    return Fault(MISSING_KEY, at, what, fix)


def _unknown(state: _RunTomlWalk, table: Table, path: KeyPath, value: Any) -> Fault:
    from prime_train.config.suggest import KnownKeys, explain_unknown  # most files have no such key
    from prime_train.registry.other_names import other_names

    if state.unknown > _MAX_GUESSES:
        fix = f"take it out; {name_table(path[:-1])} knows {', '.join(table.fields)}"
        return Fault(UNKNOWN_KEY, path, describe_unknown(path, value), fix)
    return explain_unknown(KnownKeys(state.root, state.values, other_names(state.other_names)), table, path, value)
