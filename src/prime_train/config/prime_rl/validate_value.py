"""Validates one value of a prime-rl file against the row of its key. Pure.

prime-rl uses pydantic's lax mode, so a value that pydantic converts without loss is a warning, not an error.
Source: docs.pydantic.dev, Conversion table, lax mode.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from prime_train.config import validate_value as plain
from prime_train.config.parsed_config import NOT_A_CHOICE, WRONG_TYPE, Fault
from prime_train.config.prime_rl.schema import Row
from prime_train.config.schema import Array, Choice, Flag, Number, Shape, Text
from prime_train.core.findings import Severity
from prime_train.spec.annotations import Limit
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted, to_toml

NONE = "None"  # in a prime-rl file, an optional key without a value, because TOML has no null
_WHOLE = r"(?a)([+-]?\d+(?:_\d+)*)(?:\.0+)?"  # pydantic reads "100.0" as 100, and refuses "1e2"
_TRUE, _FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")


def value_fault(row: Row, value: Any, key: KeyPath) -> Fault | None:
    """The fault of the value of a key that is not a table; None if the value is legal."""
    if "any" in row.words or (value == NONE and row.optional):
        return None
    if value == NONE and "text" in row.words:
        what = f"{dotted(key)} = {to_toml(value)}: prime-rl reads this as no value, and the key needs one"
        return Fault(WRONG_TYPE, key, what, f"take it out, for the default, or give {expected(row)}")
    if isinstance(value, str):
        return None if "text" in row.words else _text_fault(row, value, key)
    if isinstance(value, dict):
        inner = _inside(row, "map")
        if inner is None:
            return _wrong_type(row, value, key)
        entries = value.items() if inner else ()
        return next(
            (fault for name, item in entries if (fault := _element_fault(row, inner, item, (*key, name)))), None
        )
    if isinstance(value, list):
        inner = _inside(row, "list")
        if inner is None:
            return _wrong_type(row, value, key)
        return next(
            (fault for i, item in enumerate(value) if (fault := _element_fault(row, inner, item, (*key, i)))), None
        )
    for word in row.words:
        if word in ("whole", "number", "flag") and _is(word, value):
            has_limits = word == "number" or row.bounds  # a number must be finite
            return plain.value_fault(_shape(word, row.bounds), value, key, row.default) if has_limits else None
    return _wrong_type(row, value, key)


def _text_fault(row: Row, value: str, key: KeyPath) -> Fault | None:
    """The fault of a string where not every string is legal."""
    choices = () if any("[choice]" in word for word in row.words) else row.choices  # those are of the elements
    if value in choices:
        return None
    if not choices:
        return _wrong_type(row, value, key)
    converted = convert(row, value)
    return _no_choice(row, value, key) if converted is None else _lax(value, converted, key)


def fits(row: Row, value: Any) -> bool:
    """Whether the value is legal for a key, for guessing which key the user meant."""
    if "any" in row.words:
        return True
    if isinstance(value, dict):
        return bool(row.table or row.map) or _inside(row, "map") is not None
    if isinstance(value, list) and row.array:
        return True
    holds_table = row.table or row.map or row.array
    return not (holds_table and not row.words and not row.choices) and value_fault(row, value, ()) is None


def _inside(row: Row, container: str) -> str | None:
    """The word for the elements of a list or map: "text", "" for any value; None if the row has no such container."""
    for word in row.words:
        name, _, inner = word.partition("[")
        if name == container:
            return inner[:-1] if inner not in ("any]", "none]") else ""
    return None


def _element_fault(row: Row, inner: str, value: Any, key: KeyPath) -> Fault | None:
    entry = Row(words=() if inner == "choice" else (inner or "any",), choices=row.choices if inner == "choice" else ())
    return value_fault(entry, value, key)


def _is(word: str, value: Any) -> bool:
    if word == "flag":
        return isinstance(value, bool)
    return not isinstance(value, bool) and isinstance(value, int if word == "whole" else (int, float))


@cache
def _shape(word: str, bounds: tuple[tuple[str, float], ...]) -> Shape:
    match word.partition("[")[0]:
        case "whole" | "number":
            return Number(word == "whole", tuple(Limit(sign, limit) for sign, limit in bounds))
        case "flag":
            return Flag()
        case "list":
            return Array(Text())
        case _:
            return Text()


def _no_choice(row: Row, value: str, key: KeyPath) -> Fault:
    fault = plain.value_fault(Choice(row.choices), value, key)
    if fault is not None and not any(word in ("whole", "number", "flag") for word in row.words):
        return fault
    meant = nearest(value, row.choices)
    name = dotted(key)
    what = f"{name} = {plain.describe_short(value)}: must be {expected(row)}"
    fix = f"{name} = {to_toml(meant)}" if meant else f"give {expected(row)}"
    return Fault(NOT_A_CHOICE, key, what, fix, {name: meant} if meant else {})


def _wrong_type(row: Row, value: Any, key: KeyPath) -> Fault:
    converted = convert(row, value)
    if converted is not None:
        return _lax(value, converted, key)
    words = [word for word in row.words if word != "none"]
    if len(words) == 1 and not row.choices and words[0] != "map" and not isinstance(value, list):
        fault = plain.value_fault(_shape(words[0], row.bounds), value, key, row.default)
        if fault is not None:
            return fault
    if isinstance(value, list) and len(value) == 1 and value_fault(row, value[0], key) is None:
        fix = f"{dotted(key)} = {plain.describe_short(value[0])}"
        return plain.type_fault(key, expected(row), value, fix, {dotted(key): value[0]})
    return plain.type_fault(key, expected(row), value, f"give {expected(row)}")


def _lax(value: Any, converted: Any, key: KeyPath) -> Fault:
    name = dotted(key)
    what = f"{name} is {plain.describe(value)}; prime-rl reads it as {to_toml(converted)}"
    return Fault(
        WRONG_TYPE, key, what, f"{name} = {to_toml(converted)}", {name: converted}, severity=Severity.WARNING, safe=True
    )


def convert(row: Row, value: Any) -> Any:
    """The value as pydantic converts it; None if pydantic refuses."""
    made = (_convert_without_loss(word, value) for word in row.words)
    return next((each for each in made if each is not None and value_fault(row, each, ()) is None), None)


def _convert_without_loss(word: str, value: Any) -> Any:
    match word, value:
        case "flag", str():
            return True if value.lower() in _TRUE else False if value.lower() in _FALSE else None
        case "flag", 0 | 1:
            return value == 1
        case "whole" | "number", bool():
            return int(value)
        case "whole", float() if value.is_integer():
            return int(value)
        case "whole", str():
            return int(re.sub("_", "", found[1])) if (found := re.fullmatch(_WHOLE, value.strip())) else None
        case "number", str() if value.isascii() and not ("_" in value and value != value.strip()):
            try:
                return float(value)
            except ValueError:
                return None
        case _:
            return None


def expected(row: Row) -> str:
    """A description of the legal values of a key."""
    words = [word for word in row.words if word != "none"]
    names = ["a table" if word.startswith("map") else plain.expected(_shape(word, row.bounds)) for word in words]
    if row.table or row.map:
        names.append("a table")
    if row.array:
        names.append("an array of tables")
    if row.choices and not any(word.startswith("list[") for word in words):
        names.append(plain.expected(Choice(row.choices)))
    return " or ".join(dict.fromkeys(names))
