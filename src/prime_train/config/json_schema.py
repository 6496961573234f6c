"""Turns the schema of a config format into a JSON Schema for editors, in draft 7, which most of them read. Pure."""

from __future__ import annotations

from typing import Any

from prime_train.config.schema import AnyOf, Anything, Array, Field, Flag, Map, Number, OneOf, Scalars, Shape, Table

DRAFT = "http://json-schema.org/draft-07/schema#"
_KEYWORDS = {">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}


def json_schema(training: Table, serving: Table, command: Table, audio: Table) -> dict[str, Any]:
    """The JSON Schema of a whole file: a training, or a run.kind with fewer keys, "serve", "command" or "audio".

    All keys are listed once, for completion; `then` and `else` hold the required and allowed keys of each kind.
    """
    whole = _of_table(training)
    required = whole.pop("required", [])
    run_required = whole["properties"]["run"].pop("required", [])
    whole["properties"]["command"] = of_field(command.fields["command"])
    trains = {
        "required": required,
        "propertyNames": {"enum": list(training.fields)},
        "properties": {"run": {"required": run_required}},
    }
    of_command = _of_kind("command", command, _of_kind("audio", audio, trains))
    return {"$schema": DRAFT, "title": "run.toml of prime-train", **whole, **_of_kind("serve", serving, of_command)}


def _of_kind(kind: str, table: Table, otherwise: dict[str, Any]) -> dict[str, Any]:
    """`if`, `then` and `else` of one run.kind. `otherwise`: the schema of the other kinds."""
    found = _of_table(table)
    run = found["properties"]["run"]
    keys = {"required": run["required"], "propertyNames": {"enum": list(run["properties"])}}
    return {
        "if": {
            "properties": {"run": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}},
            "required": ["run"],
        },
        "then": {
            "required": found["required"],
            "propertyNames": {"enum": list(table.fields)},
            "properties": {"run": keys},
        },
        "else": otherwise,
    }


def _of_table(table: Table) -> dict[str, Any]:
    properties = {key: of_field(item) for key, item in table.fields.items()}
    required = [item.key for item in table.required()]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def of_field(item: Field) -> dict[str, Any]:
    """The schema of a key, with its meaning and its default."""
    schema = _of_shape(item.shape)
    if item.optional:
        schema = {"anyOf": [*schema.get("anyOf", [schema]), {"const": "None"}]}  # TOML has no null
    if item.doc:
        schema = {"description": item.doc, **schema}
    default = list(item.default) if isinstance(item.default, tuple) else item.default
    is_shown = isinstance(default, bool | int | float | str | list) and default != [] and "$ref" not in schema
    return schema | {"default": default} if is_shown else schema


def _of_shape(shape: Shape) -> dict[str, Any]:
    """The schema of a value. A table with a name is a reference to its definition."""
    match shape:
        case Table(name=name):
            return {"$ref": f"#/definitions/{_pointer(name)}"} if name else _of_table(shape)
        case Array(item=item, min_len=min_len):
            return {"type": "array", "items": _of_shape(item)} | ({"minItems": min_len} if min_len else {})
        case OneOf(values=values):
            return {"type": "string", "enum": list(values)}
        case Number(words=(_, *_)):
            return _of_shape(AnyOf((shape._replace(words=()), OneOf(shape.words))))
        case Number(whole=whole, bounds=bounds):
            limits = {_KEYWORDS[bound.sign]: bound.limit for bound in bounds}
            return {"type": "integer" if whole else "number", **limits}
        case Flag():
            return {"type": "boolean"}
        case Map(item=Anything()):
            return {"type": "object"}
        case Map(item=item):
            return {"type": "object", "additionalProperties": _of_shape(item)}
        case Scalars():
            return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
        case AnyOf(shapes=shapes):
            return {"anyOf": [_of_shape(each) for each in shapes]}
        case Anything():
            return {}
    return {"type": "string"}


def _pointer(name: str) -> str:
    """A name in a reference. Source: RFC 6901, section 3."""
    return name.replace("~", "~0").replace("/", "~1")
