"""Walks the values of a file along its schema, builds its value and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from prime_train.config.parsed_config import MISSING_KEY, OUT_OF_BOUNDS, SYNTAX, UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Field, Number, Shape, Table, walk_fields
from prime_train.config.validate_value import describe_unknown, expected, misplaced, name_table, value_fault
from prime_train.toml.did_you_mean import edit_distance, nearest
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
            what, fix = f"the table [{key}] is missing", f"add [{key}] with {required}"
        case Array(item=Table()):
            what, fix = f"{key} is missing", f"add a [[{key}]] table"
        case shape:
            what, fix = f"{key} is missing", f"{key} = ...: {expected(shape)}. {item.doc}"
    return Fault(MISSING_KEY, at.key, what, fix, shadows=at.name)


def _unknown(state: _Walk, table: Table, at: _At, key: str, value: Any) -> Fault:
    path = (*at.key, key)
    what, (meant, why_there, safe) = describe_unknown(path, value), _meant(state, table, at, key, value)
    if meant is None:
        fix = f"take it out; {name_table(at.key)} knows {', '.join(table.fields)}"
        return Fault(UNKNOWN_KEY, path, what, fix)
    fault = Fault(UNKNOWN_KEY, path, f"{what}; {why_there}", "", safe=safe)
    return misplaced(state.values, fault, value, meant, _field_name(state.root, meant))


def _meant(state: _Walk, table: Table, at: _At, key: str, value: Any) -> tuple[KeyPath | None, str, bool]:
    """(the key that the user meant, the reason, whether it is certain): a misspelt key, another table's key, another
    tool's name for it. A table is no key of another table."""
    state.guesses += 1
    if state.guesses > _MAX_GUESSES:
        return None, "", False
    legal = list(table.fields)
    close = nearest(key, legal)
    plain = key.lower().replace("-", "_")
    known = state.other_names.get(dotted((*at.key, plain))) or state.other_names.get(plain)
    if known and not (close and known.endswith(f".{close}")):
        return tuple(known.split(".")), f"its name here is {known}", True
    leaves = [] if isinstance(value, dict) else _leaves(state.root)
    homes = [path for path in leaves if path[-1] == key]
    if homes:
        return homes[0], f"it belongs in [{dotted(homes[0][:-1])}]", len(homes) == 1
    if close:
        return (*at.key, close), f"did you mean {close}?", 4 * edit_distance(key, close) <= len(key)
    far = nearest(key, {path[-1] for path in leaves})
    homes = [path for path in leaves if path[-1] == far]
    return (homes[0], f"did you mean {dotted(homes[0])}?", False) if homes else (None, "", False)


def _leaves(table: Table) -> list[tuple[str, ...]]:
    return [path for path, _, item in walk_fields(table) if not isinstance(item.shape, Table)]


def _field_name(table: Table, key: KeyPath) -> str:
    """The RunSpec field of a key path."""
    names: list[str] = []
    shape: Shape = table
    for part in key:
        if isinstance(shape, Array):
            names.append(str(part))
            shape = shape.item
        elif isinstance(shape, Table) and part in shape.fields:
            item = shape.fields[str(part)]
            names.append(item.name)
            shape = item.shape
    return ".".join(names)
