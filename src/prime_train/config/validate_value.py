"""Judges one value against its shape, and describes its fault. Pure.

prime-rl also accepts what pydantic converts: `prime_rl/validate_value`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prime_train.config.parsed_config import NOT_A_CHOICE, OUT_OF_BOUNDS, WRONG_TYPE, Fault
from prime_train.config.schema import AnyOf, Anything, Array, Flag, Map, Number, OneOf, Scalars, Shape, Table, Text
from prime_train.core.findings import NO_PATCH, Patch
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted, to_toml, value_at

_SHOWN_CHARS = 40
_PATCHED_DEPTH = 20  # a value nested deeper is not copied into a patch

_SHORT_WORD = 3  # letters


def value_fault(shape: Shape, value: Any, key: KeyPath, default: Any = None) -> Fault | None:
    """The first fault of a value; None if it is legal. `default` replaces an illegal number if it is legal itself."""
    if not has_type(shape, value):
        return _wrong_type(shape, value, key)
    match shape:
        case Scalars():
            return next((_not_a_scalar((*key, name), e) for name, e in value.items() if not _is_scalar(e)), None)
        case OneOf(values=legal) if value not in legal:
            return _not_a_choice(shape, value, key)
        case Number() if not isinstance(value, str) and not _is_legal(shape, value):
            return _illegal_number(shape, value, key, default)
    return None


def has_type(shape: Shape, value: Any) -> bool:
    """Whether a value has the type of a shape; what is in a table or an array is not looked at."""
    match shape:
        case Number(words=words) if isinstance(value, str):
            return value in words
        case Number(whole=whole):
            return not isinstance(value, bool) and isinstance(value, int if whole else (int, float))
        case Text() | OneOf():
            return isinstance(value, str)
        case Flag():
            return isinstance(value, bool)
        case Scalars() | Table():
            return isinstance(value, dict)
        case Array():
            return isinstance(value, list)
        case Map():
            return isinstance(value, dict)
        case Anything():
            return True
        case _:
            return False


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool) or (isinstance(value, int | float) and _is_finite(value))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False


def _is_legal(shape: Number, value: float) -> bool:
    return (shape.whole or _is_finite(value)) and all(bound.holds(value) for bound in shape.bounds)


def _not_a_scalar(key: KeyPath, value: Any) -> Fault:
    return type_fault(key, "a string, a number, true or false", value, f"write {dotted(key)} as one string")


def _not_a_choice(shape: OneOf, value: str, key: KeyPath) -> Fault:
    # "ppo" is one letter from "dpo", and means something else: short words are never corrected.
    name, meant = dotted(key), nearest(value, shape.values) if len(value) > _SHORT_WORD else None
    legal = f"must be {shape.values[0]}" if len(shape.values) == 1 else f"one of {', '.join(shape.values)}"
    what = f"{name} = {_shorten(value)}: {legal}" + (f"; did you mean {meant}?" if meant else "")
    suggested = [meant] if meant else shape.values
    fix = f"{name} = {' or '.join(to_toml(each) for each in suggested)}"
    return Fault(NOT_A_CHOICE, key, what, fix, {name: meant} if meant else NO_PATCH)


def _illegal_number(shape: Number, value: float, key: KeyPath, default: Any) -> Fault:
    """Suggests a legal number: the default, else a bound, else the number after a bound."""
    near = [default, *(bound.limit for bound in shape.bounds), *(bound.limit + 1 for bound in shape.bounds)]
    legal = next((each for each in near if isinstance(each, int | float) and _is_legal(shape, each)), None)
    is_number = shape.whole or _is_finite(value)
    wanted = " and ".join(str(bound) for bound in shape.bounds) if is_number else "a finite number"
    name, what = dotted(key), f"{dotted(key)} = {_shorten(value)} is not {wanted}"
    if legal is None:
        return Fault(OUT_OF_BOUNDS, key, what, f"a value {wanted}" if is_number else wanted)
    legal = int(legal) if shape.whole else legal
    return Fault(OUT_OF_BOUNDS, key, what, f"{name} = {to_toml(legal)}", {name: legal} if is_number else NO_PATCH)


def type_fault(key: KeyPath, wanted: str, value: Any, fix: str, patch: Patch = NO_PATCH) -> Fault:
    """The fault of a value of another type than its key holds. `wanted` describes that type."""
    what = f"{dotted(key)} must be {wanted}, not {describe(value)}"
    return Fault(WRONG_TYPE, key, what, fix, patch, safe=True)  # the same value as another type


def _wrong_type(shape: Shape, value: Any, key: KeyPath) -> Fault:
    name, converted = dotted(key), _convert(shape, value)
    if isinstance(shape, Array) and isinstance(shape.item, Table) and isinstance(value, dict):
        fix = f"{name_table((*key, 0))} with two brackets: there may be several"
    elif converted is not None:
        fix = f"{name} = {to_toml(converted)}"
    else:
        is_table = isinstance(shape, Table | Map | Scalars)
        fix = f"{name_table(key)} with its keys below" if is_table else f"give {expected(shape)}"
    return type_fault(key, expected(shape), value, fix, NO_PATCH if converted is None else {name: converted})


def expected(shape: Shape) -> str:
    """A description of the legal values."""
    match shape:
        case Number(whole=True, words=words):
            return " or ".join(["a whole number", *map(to_toml, words)])
        case Number():
            return "a number"
        case Text():
            return "a string"
        case OneOf(values=values):
            return "one of " + ", ".join(to_toml(value) for value in values)
        case Flag():
            return "true or false"
        case Array(item=item):
            return "an array of tables" if isinstance(item, Table) else "an array"
        case Table() | Map() | Scalars():
            return "a table"
        case AnyOf(shapes=shapes):
            return " or ".join(dict.fromkeys(map(expected, shapes)))
        case Anything():
            return "any value"


def describe(value: Any) -> str:
    """A parsed value in words, at most one line: `the string "8"`, `an array of 3`."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {_shorten(value)}"
        case int() | float():
            return f"the number {_shorten(value)}"
        case list():
            return f"an array of {len(value)}"
        case dict():
            return "a table"
        case _:
            return f"the date or time {value}"


def describe_short(value: Any) -> str:
    """A scalar as TOML, shortened; other values in words."""
    return _shorten(value) if isinstance(value, str | int | float) else describe(value)


def _shorten(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_SHOWN_CHARS:
        return f"an integer of {value.bit_length()} bits"
    text = to_toml(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _convert(shape: Shape, value: Any) -> Any:
    """The value in the right type; None if its meaning is not certain."""
    match shape, value:
        case Number(whole=True), float() if math.isfinite(value) and value == int(value):
            converted: Any = int(value)
        case Number(whole=whole), str():
            try:
                converted = int(value) if whole else float(value)
            except ValueError:
                return None
        case Flag(), str() if value.lower() in ("true", "false"):
            return value.lower() == "true"
        case Flag(), 0 | 1:
            return value == 1
        case Text(), int() | float() if not isinstance(value, bool) and _is_finite(value):
            return to_toml(value)
        case Array(item=item), _ if _is_legal_item(item, value):
            return [value] if is_shallow(value) else None
        case _:
            return None
    return converted if _is_finite(converted) and _is_legal(shape, converted) else None


def _is_legal_item(item: Shape, value: Any) -> bool:
    return isinstance(value, dict) if isinstance(item, Table) else value_fault(item, value, ()) is None


def is_shallow(value: Any, depth: int = _PATCHED_DEPTH) -> bool:
    """Whether a patch may hold the value: it is not nested too deeply."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(is_shallow(each, depth - 1) for each in below)


def describe_unknown(path: KeyPath, value: Any) -> str:
    kind = "table" if isinstance(value, dict) and len(path) == 1 else "key"
    return f"{dotted(path)} is not a {kind} of {name_table(path[:-1])}"


def name_table(path: KeyPath) -> str:
    """The header of a table as TOML writes it: without indices, and in two brackets for an item of an array."""
    if not path:
        return "the file"
    names = dotted(tuple(part for part in path if isinstance(part, str)))
    return f"[[{names}]]" if isinstance(path[-1], int) else f"[{names}]"


def misplaced(values: Mapping[str, Any], fault: Fault, value: Any, meant: KeyPath, shadows: str = "") -> Fault:
    """The fault of a key whose right name or place is `meant`, with its fix. `shadows` is the RunSpec field of `meant`.

    The fix moves the value, unless `meant` is set already. It is as safe as the given fault: only the caller knows
    whether `meant` is certain.
    """
    name, to = dotted(fault.key), dotted(meant)
    if value_at(values, meant) is not None:
        if isinstance(value, dict):
            return fault._replace(fix=f"move its keys to {name_table(meant)}")
        return fault._replace(fix=f"take it out: {to} is set already", patch={name: None}, safe=False)
    patch: Patch = {name: None, to: value} if is_shallow(value) else NO_PATCH
    return fault._replace(fix=assignment(meant, value), patch=patch, shadows=shadows)


def assignment(key: KeyPath, value: Any) -> str:
    """The line that sets a key, shortened; only the header of a table or an array."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return name_table((*key, 0))
    return name_table(key) if isinstance(value, dict | list) else f"{dotted(key)} = {describe_short(value)}"
