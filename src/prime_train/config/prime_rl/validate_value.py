"""Validates one value of a prime-rl file against the field of its key. Pure.

prime-rl uses pydantic's lax mode, so a value that pydantic converts without loss is a warning, not an error.
Source: docs.pydantic.dev, Conversion table, lax mode.
"""

from __future__ import annotations

import re
from typing import Any

from prime_train.config import schema
from prime_train.config import validate_value as plain
from prime_train.config.parsed_config import NOT_A_CHOICE, WRONG_TYPE, Fault
from prime_train.config.schema import Field, Shape, choices, may_be, shapes_of, table_below
from prime_train.core.findings import Severity
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted, to_toml

NONE = "None"  # in a prime-rl file, an optional key without a value, because TOML has no null
_WHOLE = r"(?a)([+-]?\d+(?:_\d+)*)(?:\.0+)?"  # pydantic reads "100.0" as 100, and refuses "1e2"
_TRUE, _FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")


def value_fault(item: Field, value: Any, key: KeyPath) -> Fault | None:
    """The fault of the value of a key that is not a table; None if the value is legal."""
    if value == NONE and item.optional:
        return None
    if value == NONE and may_be(item.shape, schema.Text):
        what = f"{dotted(key)} = {to_toml(value)}: prime-rl reads this as no value, and the key needs one"
        return Fault(WRONG_TYPE, key, what, f"take it out, for the default, or give {plain.expected(item.shape)}")
    match next((shape for shape in shapes_of(item.shape) if plain.has_type(shape, value)), None):
        case None:
            return _wrong_type(item, value, key)
        case schema.OneOf(values=values) if value not in values:
            converted = convert(item.shape, value)
            return _no_choice(item, value, key) if converted is None else _lax(value, converted, key)
        case schema.Array(item=inner) | schema.Map(item=inner):
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            found = (value_fault(_field(inner), each, (*key, name)) for name, each in entries)
            return next((fault for fault in found if fault), None)
        case schema.Number() as shape:
            return plain.value_fault(shape, value, key, item.default)
    return None


def _field(shape: Shape) -> Field:
    return Field("", "", shape, "", None)


def fits(item: Field, value: Any) -> bool:
    """Whether the value is legal for a key, for guessing which key the user meant."""
    if isinstance(value, dict):
        return may_be(item.shape, schema.Table, schema.Map, schema.Anything)
    has_tables = isinstance(value, list) and may_be(item.shape, schema.Array) and table_below(item.shape)[0] is not None
    return has_tables or value_fault(item, value, ()) is None


def _no_choice(item: Field, value: str, key: KeyPath) -> Fault:
    legal, wanted = choices(item), plain.expected(item.shape)
    fault = plain.value_fault(schema.OneOf(legal), value, key)
    if fault is not None and not may_be(item.shape, schema.Number, schema.Flag):
        return fault
    meant, name = nearest(value, legal), dotted(key)
    what = f"{name} = {plain.describe_short(value)}: must be {wanted}"
    fix = f"{name} = {to_toml(meant)}" if meant else f"give {wanted}"
    return Fault(NOT_A_CHOICE, key, what, fix, {name: meant} if meant else {})


def _wrong_type(item: Field, value: Any, key: KeyPath) -> Fault:
    shape = item.shape
    converted = convert(shape, value)
    if converted is not None:
        return _lax(value, converted, key)
    has_own_text = not isinstance(shape, schema.AnyOf | schema.OneOf | schema.Map)
    if has_own_text and (isinstance(shape, schema.Table) or not isinstance(value, list)):
        fault = plain.value_fault(shape, value, key, item.default)
        if fault is not None:
            return fault
    if isinstance(value, list) and len(value) == 1 and value_fault(item, value[0], key) is None:
        fix = f"{dotted(key)} = {plain.describe_short(value[0])}"
        return plain.type_fault(key, plain.expected(shape), value, fix, {dotted(key): value[0]})
    return plain.type_fault(key, plain.expected(shape), value, f"give {plain.expected(shape)}")


def _lax(value: Any, converted: Any, key: KeyPath) -> Fault:
    name = dotted(key)
    what = f"{name} is {plain.describe(value)}; prime-rl reads it as {to_toml(converted)}"
    return Fault(
        WRONG_TYPE, key, what, f"{name} = {to_toml(converted)}", {name: converted}, severity=Severity.WARNING, safe=True
    )


def convert(shape: Shape, value: Any) -> Any:
    """The value as pydantic converts it; None if pydantic refuses."""
    made = (_convert_without_loss(each, value) for each in shapes_of(shape))
    return next((each for each in made if each is not None and value_fault(_field(shape), each, ()) is None), None)


def _convert_without_loss(shape: Shape, value: Any) -> Any:
    match shape, value:
        case schema.Flag(), str():
            return True if value.lower() in _TRUE else False if value.lower() in _FALSE else None
        case schema.Flag(), 0 | 1:
            return value == 1
        case schema.Number(), bool():
            return int(value)
        case schema.Number(whole=True), float() if value.is_integer():
            return int(value)
        case schema.Number(whole=True), str():
            return int(re.sub("_", "", found[1])) if (found := re.fullmatch(_WHOLE, value.strip())) else None
        case schema.Number(whole=False), str() if value.isascii() and not ("_" in value and value != value.strip()):
            try:
                return float(value)
            except ValueError:
                return None
        case _:
            return None
