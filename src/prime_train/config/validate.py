"""Walks the values of a file along its schema, builds its value and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from prime_train.config.parsed_config import MISSING_KEY, OUT_OF_BOUNDS, SYNTAX, UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Field, Number, Table
from prime_train.config.validate_value import describe_unknown, expected, name_table, value_fault
from prime_train.toml.document import Document, KeyPath, dotted

_REFUSED: Any = object()  # stands for a value that could not be read; its fault is in the list
_MAX_REFUSED_ENTRIES = 20  # faults that are reported for one array
_MAX_GUESSES = 200  # unknown keys that are compared with every legal key; a file with more is not a config
_MAX_UNKNOWN = 2000  # unknown keys that are reported for one table, because a million of them take seconds


class _At(NamedTuple):
    """A position of the walk: the key path in the file, and the RunSpec field that it sets."""

    key: KeyPath
    name: str

    def down(self, key: str | int, name: str) -> _At:
        return _At((*self.key, key), f"{self.name}.{name}" if self.name else name)


class _Walk:
    """The input and the faults of one walk. `other_names`: keys of other tools -> our dotted key."""

    __slots__ = ("faults", "guesses", "other_names", "root", "values")

    def __init__(self, root: Table, values: Mapping[str, Any], other_names: Mapping[str, str]) -> None:
        self.root, self.values, self.other_names = root, values, other_names
        self.faults: list[Fault] = []
        self.guesses = 0


def walk(root: Table, values: Mapping[str, Any], other_names: Mapping[str, str]) -> tuple[Any, list[Fault]]:
    """(the value that `root` makes, every fault). A field with a fault takes its default.

    The value is None if a field without a default is missing or has a fault.
    """
    state = _Walk(root, values, other_names)
    built = _table(state, root, values, _At((), ""))
    return (None if built is _REFUSED else built), state.faults


def walk_document(root: Table, document: Document, other_names: Mapping[str, str]) -> tuple[Any, list[Fault]]:
    """`walk` over a document. If it is not valid TOML, the value is None and missing keys are not faults."""
    built, faults = walk(root, document.values, other_names)
    if document.fault is None:
        return built, faults
    fix = document.fault.fix or "correct the line; what stands in it is unread"
    present = (fault for fault in faults if fault.code != MISSING_KEY)
    return None, [Fault(SYNTAX, (), document.fault.what, fix), *present]


def _table(state: _Walk, table: Table, values: Mapping[str, Any], at: _At) -> Any:
    arguments: dict[str, Any] = {}
    complete = True
    for key, item in table.fields.items():
        here = at.down(key, item.name)
        if key in values:
            value = _value(state, item, values[key], here)
            if value is not _REFUSED:
                arguments[item.name] = value
            elif item.required:
                complete = False
        elif item.required:
            complete = False
            state.faults.append(_missing(item, here))
    unknown = (key for key in values if key not in table.fields)
    for key in islice(unknown, _MAX_UNKNOWN):
        state.faults.append(_unknown(state, table, at, key, values[key]))
    return table.make(**arguments) if complete else _REFUSED


def _value(state: _Walk, item: Field, value: Any, at: _At) -> Any:
    """The value in the field's type, or _REFUSED with a fault in the list."""
    shape = item.shape
    if isinstance(shape, Table) and isinstance(value, dict):
        return _table(state, shape, value, at)
    if isinstance(shape, Array) and isinstance(value, list):
        return _array(state, item, shape, value, at)
    fault = value_fault(shape, value, at.key, item.default)
    if fault is not None:
        state.faults.append(fault._replace(shadows=at.name))
        return _REFUSED
    return float(value) if isinstance(shape, Number) and not shape.whole else value


def _array(state: _Walk, item: Field, shape: Array, values: list[Any], at: _At) -> Any:
    if len(values) < shape.min_len:
        what = f"{dotted(at.key)} has {len(values)} entries; at least {shape.min_len} must be there"
        state.faults.append(Fault(OUT_OF_BOUNDS, at.key, what, f"add an entry to {dotted(at.key)}", shadows=at.name))
        return _REFUSED
    entry = Field(item.name, item.key, shape.item, item.doc, _REFUSED)
    built, refused = [], 0
    for number, value in enumerate(values):
        built.append(_value(state, entry, value, at.down(number, str(number))))
        refused += built[-1] is _REFUSED
        if refused == _MAX_REFUSED_ENTRIES:
            break
    return _REFUSED if refused else tuple(built)


def _missing(item: Field, at: _At) -> Fault:
    key = dotted(at.key)
    match item.shape:
        case Table(fields=below):
            required = ", ".join(name for name, field_ in below.items() if field_.required)
            header = name_table(at.key)
            what, fix = f"the table {header} is missing", f"add {header} with {required}"
        case Array(item=Table()):
            what, fix = f"{key} is missing", f"add a {name_table((*at.key, 0))} table"
        case shape:
            what, fix = f"{key} is missing", f"{key} = ...: {expected(shape)}. {item.doc}"
    return Fault(MISSING_KEY, at.key, what, fix, shadows=at.name)


def _unknown(state: _Walk, table: Table, at: _At, key: str, value: Any) -> Fault:
    from prime_train.config.suggest import Known, explain_unknown  # most files have no such key

    path = (*at.key, key)
    state.guesses += 1
    if state.guesses > _MAX_GUESSES:
        fix = f"take it out; {name_table(at.key)} knows {', '.join(table.fields)}"
        return Fault(UNKNOWN_KEY, path, describe_unknown(path, value), fix)
    return explain_unknown(Known(state.root, state.values, state.other_names), table, path, value)
