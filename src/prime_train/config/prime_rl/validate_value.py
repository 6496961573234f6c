"""Judges one value of a prime-rl file against its row of the table. Pure.

prime-rl reads with pydantic in its lax mode: a value that it converts without loss is a warning, not an error.
Source: docs.pydantic.dev, Conversion table, lax mode.
"""

from __future__ import annotations

from typing import Any

from prime_train.config import validate_value as plain
from prime_train.config.parsed_config import NOT_A_CHOICE, WRONG_TYPE, Fault
from prime_train.config.prime_rl.schema import Row
from prime_train.config.schema import Array, Bound, Choice, Field, Flag, Number, Shape, Text
from prime_train.core.findings import Severity
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted, to_toml

NONE = "None"  # how a prime-rl file says that an optional key has no value; TOML has no null
_TRUE, _FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")


def value_fault(row: Row, value: Any, key: KeyPath) -> Fault | None:
    """What is wrong with the value of a key that holds no table; None where nothing is."""
    if "any" in row.words or (value == NONE and row.optional):
        return None
    if isinstance(value, str) and (value in row.choices or "text" in row.words):
        return None
    if isinstance(value, dict):
        inner = _inside(row, "map")
        if inner is None:
            return _wrong_type(row, value, key)
        entries = value.items() if inner else ()
        return next((fault for name, item in entries if (fault := _entry(row, inner, item, (*key, name)))), None)
    if isinstance(value, list):
        inner = _inside(row, "list")
        if inner is None:
            return _wrong_type(row, value, key)
        return next((fault for i, item in enumerate(value) if (fault := _entry(row, inner, item, (*key, i)))), None)
    for word in row.words:
        if word in ("whole", "number", "flag") and _is(word, value):
            return plain.value_fault(_field(row, _shape(row, word)), value, plain.At(key, ""))
    if isinstance(value, str) and row.choices:
        converted = _converted(row, value)
        return _no_choice(row, value, key) if converted is None else _lax(value, converted, key)
    return _wrong_type(row, value, key)


def fits(row: Row, value: Any) -> bool:
    """Whether a key could have this value: a hint at what was meant."""
    if "any" in row.words:
        return True
    if isinstance(value, dict):
        return bool(row.table or row.map) or _inside(row, "map") is not None
    if isinstance(value, list) and row.array:
        return True
    holds_table = row.table or row.map or row.array
    return not (holds_table and not row.words and not row.choices) and value_fault(row, value, ()) is None


def _inside(row: Row, container: str) -> str | None:
    """What a list or map of this row holds: "text", "" for anything; None where the row has no such container."""
    for word in row.words:
        name, _, inner = word.partition("[")
        if name == container:
            return inner[:-1] if inner not in ("any]", "none]") else ""
    return None


def _entry(row: Row, inner: str, value: Any, key: KeyPath) -> Fault | None:
    entry = Row(words=() if inner == "choice" else (inner or "any",), choices=row.choices if inner == "choice" else ())
    return value_fault(entry, value, key)


def _is(word: str, value: Any) -> bool:
    if word == "flag":
        return isinstance(value, bool)
    return not isinstance(value, bool) and isinstance(value, int if word == "whole" else (int, float))


def _shape(row: Row, word: str) -> Shape:
    match word.partition("[")[0]:
        case "whole" | "number":
            return Number(word == "whole", tuple(Bound(sign, limit) for sign, limit in row.bounds))
        case "flag":
            return Flag()
        case "list":
            return Array(Text())
        case _:
            return Text()


def _field(row: Row, shape: Shape) -> Field:
    return Field("", "", shape, "", row.default)


def _no_choice(row: Row, value: str, key: KeyPath) -> Fault:
    choice = Choice(row.choices)
    if not any(word in ("whole", "number", "flag") for word in row.words):
        fault = plain.value_fault(_field(row, choice), value, plain.At(key, ""))
        assert fault is not None
        return fault
    meant = nearest(value, row.choices)
    name = dotted(key)
    what = f"{name} = {plain.describe_short(value)}: must be {expected(row)}"
    fix = f"{name} = {to_toml(meant)}" if meant else f"give {expected(row)}"
    return Fault(NOT_A_CHOICE, key, what, fix, {name: meant} if meant else {})


def _wrong_type(row: Row, value: Any, key: KeyPath) -> Fault:
    converted = _converted(row, value)
    if converted is not None:
        return _lax(value, converted, key)
    words = [word for word in row.words if word != "none"]
    if len(words) == 1 and not row.choices and words[0] != "map" and not isinstance(value, list):
        fault = plain.value_fault(_field(row, _shape(row, words[0])), value, plain.At(key, ""))
        if fault is not None:
            return fault
    name = dotted(key)
    what = f"{name} must be {expected(row)}, not {plain.describe(value)}"
    if isinstance(value, list) and len(value) == 1 and value_fault(row, value[0], key) is None:
        return Fault(WRONG_TYPE, key, what, f"{name} = {plain.describe_short(value[0])}", {name: value[0]})
    return Fault(WRONG_TYPE, key, what, f"give {expected(row)}")


def _lax(value: Any, converted: Any, key: KeyPath) -> Fault:
    name = dotted(key)
    what = f"{name} is {plain.describe(value)}; prime-rl reads it as {to_toml(converted)}"
    return Fault(WRONG_TYPE, key, what, f"{name} = {to_toml(converted)}", {name: converted}, severity=Severity.WARNING)


def _converted(row: Row, value: Any) -> Any:
    """What pydantic makes of a value of another type; None where it refuses."""
    for word in row.words:
        made = _lossless(word, value)
        if made is not None and value_fault(row, made, ()) is None:
            return made
    return None


def _lossless(word: str, value: Any) -> Any:
    match word, value:
        case "flag", str():
            return True if value.lower() in _TRUE else False if value.lower() in _FALSE else None
        case "flag", 0 | 1:
            return value == 1
        case "whole" | "number", bool():
            return int(value)
        case "whole", float() if value.is_integer():
            return int(value)
        case "whole" | "number", str():
            try:
                return int(value) if word == "whole" else float(value)
            except ValueError:
                return None
        case _:
            return None


def expected(row: Row) -> str:
    """What a key may hold, in words."""
    said = []
    for word in row.words:
        match word.partition("[")[0]:
            case "none":
                continue
            case "map":
                said.append("a table")
            case _:
                said.append(plain.expected(_shape(row, word)))
    if row.table or row.map:
        said.append("a table")
    if row.array:
        said.append("an array of tables")
    if row.choices and not any(word.startswith("list[") for word in row.words):
        said.append(plain.expected(Choice(row.choices)))
    return " or ".join(dict.fromkeys(said))
