"""Judges one value of a file against its shape, and words what is wrong with it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.config.parsed_config import NOT_A_CHOICE, OUT_OF_BOUNDS, WRONG_TYPE, Fault
from prime_train.config.schema import Array, Choice, Field, Flag, Number, Scalars, Shape, Table, Text
from prime_train.core.findings import Patch
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted, to_toml

_SHOWN_CHARS = 40
_PATCHED_DEPTH = 20  # a value nested deeper is not copied into a patch


class At(NamedTuple):
    """Where the walk stands: the file's key path, and the RunSpec field it feeds."""

    key: KeyPath
    name: str

    def down(self, key: str | int, name: str) -> At:
        return At((*self.key, key), f"{self.name}.{name}" if self.name else name)


def value_fault(item: Field, value: Any, at: At) -> Fault | None:
    """What is wrong with a value of this field, the most basic thing alone; None where nothing is."""
    return next(_faults(item, item.shape, value, at), None)


def _faults(item: Field, shape: Shape, value: Any, at: At) -> Iterator[Fault]:
    if not _has_type(shape, value):
        yield _wrong_type(shape, value, at)
        return
    key = dotted(at.key)
    if isinstance(shape, Scalars):
        yield from (_no_scalar(at, name, below) for name, below in value.items() if not _is_scalar(below))
        return
    if isinstance(shape, Choice) and value not in shape.values:
        meant = nearest(value, shape.values)
        fix = f"{key} = {_quoted_choice(shape, meant)}"
        yield Fault(NOT_A_CHOICE, at.key, _not_a_choice(key, value, shape, meant), fix, _set(key, meant), at.name)
    if isinstance(shape, Number):
        if not shape.whole and not _is_finite(value):
            legal = _legal_number(item, shape)
            fix = f"{key} = {to_toml(legal)}" if legal is not None else "a finite number"
            yield Fault(OUT_OF_BOUNDS, at.key, f"{key} = {_shown(value)} is not a finite number", fix, shadows=at.name)
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
        case Scalars():
            return isinstance(value, dict)
        case _:
            return False  # a table or an array where the file has something else


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool) or (isinstance(value, int | float) and _is_finite(value))


def _no_scalar(at: At, name: str, value: Any) -> Fault:
    key = (*at.key, name)
    what = f"{dotted(key)} must be a string, a number, true or false, not {describe(value)}"
    return Fault(WRONG_TYPE, key, what, f"write {dotted(key)} as one string", shadows=at.name)


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


def _wrong_type(shape: Shape, value: Any, at: At) -> Fault:
    key = dotted(at.key)
    what = f"{key} must be {expected(shape)}, not {describe(value)}"
    cured = _converted(shape, value)
    if isinstance(shape, Array) and isinstance(shape.item, Table) and isinstance(value, dict):
        fix = f"[[{key}]] with two brackets: there may be several"
    elif cured is not None:
        fix = f"{key} = {to_toml(cured)}"
    else:
        fix = f"[{key}] with its keys below" if isinstance(shape, Table | Scalars) else f"give {expected(shape)}"
    return Fault(WRONG_TYPE, at.key, what, fix, _set(key, cured), at.name)


def expected(shape: Shape) -> str:
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
        case Table() | Scalars():
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
            return [value] if is_shallow(value) else None
        case _:
            return None
    return cured if _is_finite(cured) and all(bound.holds(cured) for bound in shape.bounds) else None


def _set(key: str, value: Any) -> Patch:
    return {} if value is None else {key: value}


def describe_short(value: Any) -> str:
    """A scalar as TOML, shortened; other values in words."""
    return _shown(value) if isinstance(value, str | int | float) else describe(value)


def is_shallow(value: Any) -> bool:
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
