"""Walks the values of a file along its schema, builds what it describes and collects every fault. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prime_train.dialects.nearest import nearest
from prime_train.dialects.reading import (
    MISSING_KEY,
    NOT_A_CHOICE,
    OUT_OF_BOUNDS,
    UNKNOWN_KEY,
    WRONG_TYPE,
    Fault,
)
from prime_train.dialects.shapes import Array, Choice, Field, Flag, Number, Shape, Table, Text
from prime_train.document import KeyPath, dotted, to_toml
from prime_train.findings import Patch

_REFUSED: Any = object()  # stands for a value that could not be read; its fault is on the list
_SHOWN_CHARS = 40
_MAX_REFUSED_ENTRIES = 20  # told of one array: nobody reads on
_MAX_GUESSES = 200  # unknown keys that are compared with every legal one: beyond them the file is something else
_PATCHED_DEPTH = 20  # a value nested deeper is not copied into a patch


@dataclass(slots=True)
class _Walk:
    """What one walk knows and collects."""

    root: Table
    values: Mapping[str, Any]
    elsewhere: Mapping[str, str]  # keys that people know from other tools -> our dotted key
    faults: list[Fault] = field(default_factory=list)
    guesses: int = 0


class _At(NamedTuple):
    """Where the walk stands: the file's key path, and the RunSpec field it feeds."""

    key: KeyPath
    name: str

    def down(self, key: str | int, name: str) -> _At:
        return _At((*self.key, key), f"{self.name}.{name}" if self.name else name)


def walk(root: Table, values: Mapping[str, Any], elsewhere: Mapping[str, str]) -> tuple[Any, list[Fault]]:
    """What `root` makes of the values, and every fault. A field with a fault takes its default.

    None in place of the value where a field without a default is missing or refused.
    """
    state = _Walk(root, values, elsewhere)
    built = _table(state, root, values, _At((), ""))
    return (None if built is _REFUSED else built), state.faults


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
    for key, value in values.items():
        if key not in table.fields:
            state.faults.append(_unknown(state, table, at, key, value))
    return table.make(**arguments) if complete else _REFUSED


def _value(state: _Walk, item: Field, value: Any, at: _At) -> Any:
    """The value in the field's own type, or _REFUSED with a fault on the list."""
    shape = item.shape
    if isinstance(shape, Table) and isinstance(value, dict):
        return _table(state, shape, value, at)
    if isinstance(shape, Array) and isinstance(value, list):
        return _array(state, item, shape, value, at)
    fault = next(_scalar_faults(item, shape, value, at), None)
    if fault is not None:
        state.faults.append(fault)
        return _REFUSED
    return float(value) if isinstance(shape, Number) and not shape.whole else value


def _array(state: _Walk, item: Field, shape: Array, values: list[Any], at: _At) -> Any:
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


# --- one value -----------------------------------------------------------------------------------


def _scalar_faults(item: Field, shape: Shape, value: Any, at: _At) -> Iterator[Fault]:
    """What is wrong with a value, the most basic thing first. The first one is reported."""
    if not _has_type(shape, value):
        yield _wrong_type(shape, value, at)
        return
    key = dotted(at.key)
    if isinstance(shape, Choice) and value not in shape.values:
        meant = nearest(value, shape.values)
        fix = f"{key} = {_quoted_choice(shape, meant)}" if meant else f"{key} = {_quoted_choice(shape, None)}"
        yield Fault(NOT_A_CHOICE, at.key, _not_a_choice(key, value, shape, meant), fix, _set(key, meant), at.name)
    if isinstance(shape, Number):
        if not shape.whole and not _is_finite(value):
            yield Fault(OUT_OF_BOUNDS, at.key, f"{key} = {_shown(value)} is not a finite number", "", shadows=at.name)
            return
        broken = [bound for bound in shape.bounds if not bound.holds(value)]
        if broken:
            wanted = " and ".join(str(bound) for bound in shape.bounds)
            legal = _legal_number(item, shape)
            fix = f"{key} = {to_toml(legal)}" if legal is not None else f"a value {wanted}"
            what = f"{key} = {_shown(value)} is not {wanted}"
            yield Fault(OUT_OF_BOUNDS, at.key, what, fix, _set(key, legal), at.name)


def _has_type(shape: Shape, value: Any) -> bool:
    match shape:
        case Number(whole=whole):
            return not isinstance(value, bool) and isinstance(value, int if whole else (int, float))
        case Text() | Choice():
            return isinstance(value, str)
        case Flag():
            return isinstance(value, bool)
        case _:
            return False  # a table or an array where the file has something else


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what a float can hold
        return False


def _legal_number(item: Field, shape: Number) -> float | None:
    """A number that the bounds allow: the default, else a bound itself."""
    near = [item.default, *(bound.limit for bound in shape.bounds), *(bound.limit + 1 for bound in shape.bounds)]
    for number in near:
        if isinstance(number, int | float) and all(bound.holds(number) for bound in shape.bounds):
            return int(number) if shape.whole else number
    return None


def _not_a_choice(key: str, value: str, shape: Choice, meant: str | None) -> str:
    legal = f"{key} = {_shown(value)}: " + (
        f"must be {shape.values[0]}" if len(shape.values) == 1 else f"one of {', '.join(shape.values)}"
    )
    return f"{legal}; did you mean {meant}?" if meant else legal


def _quoted_choice(shape: Choice, meant: str | None) -> str:
    return to_toml(meant) if meant else " or ".join(to_toml(value) for value in shape.values)


def _wrong_type(shape: Shape, value: Any, at: _At) -> Fault:
    key = dotted(at.key)
    what = f"{key} must be {_expected(shape)}, not {describe(value)}"
    cured = _converted(shape, value)
    if isinstance(shape, Array) and isinstance(shape.item, Table) and isinstance(value, dict):
        fix = f"[[{key}]] with two brackets: there may be several"
    elif cured is not None:
        fix = f"{key} = {to_toml(cured)}"
    else:
        fix = f"[{key}] with its keys below" if isinstance(shape, Table) else f"give {_expected(shape)}"
    return Fault(WRONG_TYPE, at.key, what, fix, _set(key, cured), at.name)


def _expected(shape: Shape) -> str:
    match shape:
        case Number(whole=True):
            return "a whole number"
        case Number():
            return "a number"
        case Text():
            return "a string"
        case Choice(values=values):
            return "one of " + ", ".join(to_toml(value) for value in values)
        case Flag():
            return "true or false"
        case Array(item=item):
            return "an array of tables" if isinstance(item, Table) else "an array"
        case Table():
            return "a table"


def describe(value: Any) -> str:
    """A parsed value in words, at most one line: `the string "8"`, `an array of 3`."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {_shown(value)}"
        case int() | float():
            return f"the number {_shown(value)}"
        case list():
            return f"an array of {len(value)}"
        case dict():
            return "a table"
        case _:
            return f"the date or time {value}"


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_SHOWN_CHARS:
        return f"an integer of {value.bit_length()} bits"
    text = to_toml(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _converted(shape: Shape, value: Any) -> Any:
    """The value in the right type where there is no doubt what was meant; None where there is."""
    match shape, value:
        case Number(whole=True), float() if math.isfinite(value) and value == int(value):
            cured: Any = int(value)
        case Number(whole=whole), str():
            try:
                cured = int(value) if whole else float(value)
            except ValueError:
                return None
        case Flag(), str() if value.lower() in ("true", "false"):
            return value.lower() == "true"
        case Flag(), 0 | 1:
            return value == 1
        case Text(), int() | float() if not isinstance(value, bool) and _is_finite(value):
            return to_toml(value)
        case Array(item=item), _ if _has_type(item, value) or (isinstance(item, Table) and isinstance(value, dict)):
            return [value] if _is_shallow(value) else None
        case _:
            return None
    return cured if _is_finite(cured) and all(bound.holds(cured) for bound in shape.bounds) else None


# --- keys ----------------------------------------------------------------------------------------


def _missing(item: Field, at: _At) -> Fault:
    key = dotted(at.key)
    match item.shape:
        case Table(fields=below):
            required = ", ".join(name for name, field_ in below.items() if field_.required)
            what, fix = f"the table [{key}] is missing", f"add [{key}] with {required}"
        case Array(item=Table()):
            what, fix = f"{key} is missing", f"add a [[{key}]] table"
        case shape:
            what, fix = f"{key} is missing", f"{key} = ...: {_expected(shape)}. {item.doc}"
    return Fault(MISSING_KEY, at.key, what, fix, shadows=at.name)


def _unknown(state: _Walk, table: Table, at: _At, key: str, value: Any) -> Fault:
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
    patch: Patch = {name: None, dotted(meant): value} if _is_shallow(value) else {}
    return Fault(UNKNOWN_KEY, path, what, fix, patch, shadows=_field_name(state.root, meant))


def _meant(state: _Walk, table: Table, at: _At, key: str) -> tuple[KeyPath | None, str]:
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


def describe_short(value: Any) -> str:
    """A scalar as TOML, shortened; other values in words."""
    return _shown(value) if isinstance(value, str | int | float) else describe(value)


def _set(key: str, value: Any) -> Patch:
    return {} if value is None else {key: value}


def _is_shallow(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(_PATCHED_DEPTH):
        level = [
            below
            for item in level
            for below in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        ]
        if not level:
            return True
    return False
