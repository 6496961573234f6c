"""Renders the schema of run.toml as JSON Schema, for editors. Checks nothing.

It is made from the table that `lint` uses, so editor and linter agree on every single key.
"""

from __future__ import annotations

from dataclasses import MISSING, is_dataclass
from typing import Any

from prime_train.config.schema import Array, Choice, Field, Flag, Number, Scalars, Shape, Table, Text

_KEYWORDS = {">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}


def json_schema(training: Table, serving: Table) -> dict[str, Any]:
    """The JSON Schema of a whole file: a training, or a server (run.kind = "serve"), which has fewer keys.

    All keys are listed once, for completion; `then` and `else` hold the required and allowed keys of each kind.
    """
    whole = _of_table(training)
    required = whole.pop("required", [])
    run_required = whole["properties"]["run"].pop("required", [])
    server = _of_table(serving)
    serves = {"properties": {"run": {"properties": {"kind": {"const": "serve"}}, "required": ["kind"]}}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",  # the draft that taplo and most editors read
        "title": "run.toml of prime-train",
        **whole,
        "if": serves | {"required": ["run"]},
        "then": {
            "required": server["required"],
            "propertyNames": {"enum": list(serving.fields)},
            "properties": {
                "run": {
                    "required": server["properties"]["run"]["required"],
                    "propertyNames": {"enum": list(server["properties"]["run"]["properties"])},
                }
            },
        },
        "else": {"required": required, "properties": {"run": {"required": run_required}}},
    }


def _of_table(table: Table) -> dict[str, Any]:
    properties = {key: _of_field(item) for key, item in table.fields.items()}
    required = [key for key, item in table.fields.items() if item.required]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _of_field(item: Field) -> dict[str, Any]:
    schema = _of_shape(item.shape)
    if item.doc:
        schema = {"description": item.doc, **schema}
    if item.default is not MISSING and item.default is not None and not is_dataclass(item.default):
        schema["default"] = list(item.default) if isinstance(item.default, tuple) else item.default
    return schema


def _of_shape(shape: Shape) -> dict[str, Any]:
    match shape:
        case Table():
            return _of_table(shape)
        case Array(item=item, min_len=min_len):
            return {"type": "array", "items": _of_shape(item)} | ({"minItems": min_len} if min_len else {})
        case Choice(values=values):
            return {"type": "string", "enum": list(values)}
        case Number(whole=whole, bounds=bounds):
            limits = {_KEYWORDS[bound.sign]: bound.limit for bound in bounds}
            return {"type": "integer" if whole else "number", **limits}
        case Flag():
            return {"type": "boolean"}
        case Text():
            return {"type": "string"}
        case Scalars():
            return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
