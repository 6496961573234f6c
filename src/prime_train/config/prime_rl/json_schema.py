"""Turns a generation of prime-rl into a JSON Schema for editors. Pure.

It has the keys, types, bounds and unions of the table. It refuses a value that prime-rl would convert, such as "100"
for a number, of which a lint only warns, and knows none of the validators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prime_train.config.prime_rl.schema import Generation, Row, TableRows
from prime_train.config.prime_rl.validate_value import NONE

Schema = dict[str, Any]

_PLAIN: dict[str, Schema] = {
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "any": {},
    "map": {"type": "object"},
    "none": {"const": NONE},  # TOML has no null
}
_BOUNDS = {">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}


def json_schema(generation: Generation, root: str) -> Schema:
    """The schema of one of a generation's files, such as `rl`, in draft 7, which taplo and most editors read."""
    found: dict[str, Schema] = {}
    waiting = [generation.roots[root]]
    while waiting:
        name = waiting.pop()
        if name not in found:
            table = generation.table(name)
            found[name] = _of_table(table)
            rows = (table.row(key) for key in table.names())
            waiting.extend(below for row in rows if row is not None and (below := row.table or row.array or row.map))
    whole = found.pop(generation.roots[root])
    own = {"prime_train": {"type": "object", "description": "Settings of prime-train; prime-rl does not see them."}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"{root} of prime-rl {generation.name}",
        **whole,
        "properties": whole["properties"] | own,
        "definitions": found,
    }


def _of_table(table: TableRows) -> Schema:
    rows = {name: row for name in table.names() if (row := table.row(name)) is not None}
    properties = {name: _of_row(row) for name, row in rows.items()}
    properties |= {alias: properties[name] for name, row in rows.items() for alias in row.aliases}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": bool(table.open)}
    conditions = list(_members(table, rows)) if table.tag in rows else _required(rows, None)
    return schema | ({"allOf": conditions} if conditions else {})


def _members(table: TableRows, rows: dict[str, Row]) -> Iterator[Schema]:
    """A condition for each member of a union: the keys that it has, and those that it needs."""
    tag = rows[table.tag]
    for member in tag.choices:
        chosen: Schema = {"properties": {table.tag: {"const": member}}}
        if member != tag.default:
            chosen["required"] = [table.tag]
        others = [
            spelling
            for name, row in rows.items()
            if row.when and member not in row.when
            for spelling in (name, *row.aliases)
        ]
        needs: Schema = {"properties": dict.fromkeys(others, False)} if others else {}
        required = _required(rows, member)
        if not table.is_open(member) and table.open:
            needs["propertyNames"] = {"enum": [name for row in rows for name in (row, *rows[row].aliases)]}
        if required:
            needs["allOf"] = required
        if needs:
            yield {"if": chosen, "then": needs}


def _required(rows: dict[str, Row], member: str | None) -> list[Schema]:
    """A condition for each required key, which the file may have under an alias."""
    needed = [
        (name, *row.aliases)
        for name, row in rows.items()
        if row.required and (not row.when or member is None or member in row.when)
    ]
    return [{"anyOf": [{"required": [spelling]} for spelling in spellings]} for spellings in needed]


def _of_row(row: Row) -> Schema:
    accepted = [_of_word(row, word) for word in row.words]
    if row.choices and not any(word == "list[choice]" for word in row.words):
        accepted.append({"enum": list(row.choices)})
    below = {"$ref": f"#/definitions/{_pointer(row.table or row.array or row.map)}"}
    if row.table:
        accepted.append(below)
    elif row.array:
        accepted.append({"type": "array", "items": below})
    elif row.map:
        accepted.append({"type": "object", "additionalProperties": below})
    schema = accepted[0] if len(accepted) == 1 else {"anyOf": accepted} if accepted else {}
    is_shown = isinstance(row.default, bool | int | float | str) and "$ref" not in schema
    return schema | {"default": row.default} if is_shown else schema


def _of_word(row: Row, word: str) -> Schema:
    container, _, inner = word.partition("[")
    if inner:
        element = {"enum": list(row.choices)} if inner == "choice]" else _PLAIN[inner[:-1]]
        return (
            {"type": "array", "items": element}
            if container == "list"
            else {"type": "object", "additionalProperties": element}
        )
    bounds = {_BOUNDS[sign]: limit for sign, limit in row.bounds} if word in ("whole", "number") else {}
    return _PLAIN[word] | bounds


def _pointer(name: str) -> str:
    """A name in a reference. Source: RFC 6901, section 3."""
    return name.replace("~", "~0").replace("/", "~1")
