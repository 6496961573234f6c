"""Walks the values of a file along its schema, builds what it describes and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from prime_train.config.parsed_config import MISSING_KEY, OUT_OF_BOUNDS, UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Field, Number, Shape, Table
from prime_train.config.validate_value import At, describe_short, expected, is_shallow, value_fault
from prime_train.core.findings import Patch
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted

_REFUSED: Any = object()  # stands for a value that could not be read; its fault is on the list
_MAX_REFUSED_ENTRIES = 20  # told of one array: nobody reads on
_MAX_GUESSES = 200  # unknown keys that are compared with every legal one: beyond them the file is something else
_MAX_UNKNOWN = 2000  # keys of one table that are told to be none: nobody reads on, and a million take seconds


@dataclass(slots=True)
class _Walk:
    """What one walk knows and collects."""

    root: Table
    values: Mapping[str, Any]
    elsewhere: Mapping[str, str]  # keys that people know from other tools -> our dotted key
    faults: list[Fault] = field(default_factory=list)
    guesses: int = 0


def walk(root: Table, values: Mapping[str, Any], elsewhere: Mapping[str, str]) -> tuple[Any, list[Fault]]:
    """What `root` makes of the values, and every fault. A field with a fault takes its default.

    None in place of the value where a field without a default is missing or refused.
    """
    state = _Walk(root, values, elsewhere)
    built = _table(state, root, values, At((), ""))
    return (None if built is _REFUSED else built), state.faults


def _table(state: _Walk, table: Table, values: Mapping[str, Any], at: At) -> Any:
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


def _value(state: _Walk, item: Field, value: Any, at: At) -> Any:
    """The value in the field's own type, or _REFUSED with a fault on the list."""
    shape = item.shape
    if isinstance(shape, Table) and isinstance(value, dict):
        return _table(state, shape, value, at)
    if isinstance(shape, Array) and isinstance(value, list):
        return _array(state, item, shape, value, at)
    fault = value_fault(item, value, at)
    if fault is not None:
        state.faults.append(fault)
        return _REFUSED
    return float(value) if isinstance(shape, Number) and not shape.whole else value


def _array(state: _Walk, item: Field, shape: Array, values: list[Any], at: At) -> Any:
    if len(values) < shape.min_len:
        what = f"{dotted(at.key)} has {len(values)} entries; at least {shape.min_len} must be there"
        state.faults.append(Fault(OUT_OF_BOUNDS, at.key, what, f"add an entry to {dotted(at.key)}", shadows=at.name))
        return _REFUSED
    entry = Field(item.name, item.key, shape.item, item.doc, _REFUSED)
    built = []
    refused = 0
    for number, value in enumerate(values):
        built.append(_value(state, entry, value, at.down(number, str(number))))
        refused += built[-1] is _REFUSED
        if refused == _MAX_REFUSED_ENTRIES:
            break
    return _REFUSED if refused else tuple(built)


def _missing(item: Field, at: At) -> Fault:
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


def _unknown(state: _Walk, table: Table, at: At, key: str, value: Any) -> Fault:
    path = (*at.key, key)
    name, where = dotted(path), f"[{dotted(at.key)}]" if at.key else "the file"
    kind = "table" if isinstance(value, dict) and not at.key else "key"
    meant, why_there = _meant(state, table, at, key)
    if meant is None:
        legal = ", ".join(table.fields)
        return Fault(UNKNOWN_KEY, path, f"{name} is not a {kind} of {where}", f"take it out; {where} knows {legal}")
    what = f"{name} is not a {kind} of {where}; {why_there}"
    taken = _lookup(state.values, meant) is not None
    if taken and isinstance(value, dict):
        return Fault(UNKNOWN_KEY, path, what, f"move its keys to [{dotted(meant)}]")
    if taken:
        return Fault(UNKNOWN_KEY, path, what, f"take it out: {dotted(meant)} is set already", {name: None})
    fix = f"[{dotted(meant)}]" if isinstance(value, dict | list) else f"{dotted(meant)} = {describe_short(value)}"
    patch: Patch = {name: None, dotted(meant): value} if is_shallow(value) else {}
    return Fault(UNKNOWN_KEY, path, what, fix, patch, shadows=_field_name(state.root, meant))


def _meant(state: _Walk, table: Table, at: At, key: str) -> tuple[KeyPath | None, str]:
    """Where the user wanted to go: a misspelt key, another table's key, another tool's name for one."""
    state.guesses += 1
    if state.guesses > _MAX_GUESSES:
        return None, ""
    legal = list(table.fields)
    close = nearest(key, legal)
    known = state.elsewhere.get(key.lower().replace("-", "_"))
    if known and not (close and known.endswith(f".{close}")):
        return tuple(known.split(".")), f"its name here is {known}"
    homes = [path for path in _leaves(state.root) if path[-1] == key]
    if homes:
        return homes[0], f"it belongs in [{dotted(homes[0][:-1])}]"
    if close:
        return (*at.key, close), f"did you mean {close}?"
    far = nearest(key, {str(path[-1]) for path in _leaves(state.root)})
    homes = [path for path in _leaves(state.root) if path[-1] == far]
    return (homes[0], f"did you mean {dotted(homes[0])}?") if homes else (None, "")


def _leaves(table: Table, at: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of a schema that a patch can set: array elements have no one address."""
    for key, item in table.fields.items():
        if isinstance(item.shape, Table):
            yield from _leaves(item.shape, (*at, key))
        else:
            yield (*at, key)


def _field_name(table: Table, key: KeyPath) -> str:
    """The RunSpec field behind a key path of the schema."""
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


def _lookup(values: Mapping[str, Any], key: KeyPath) -> Any:
    current: Any = values
    for part in key:
        if not isinstance(current, dict) or part not in current:
            return None
        current = current[part]
    return current
