"""Turns a generation of prime-rl into a JSON Schema for editors. Pure.

It has the keys, types, bounds and unions of the table. It refuses a value that prime-rl would convert, such as "100"
for a number, of which a lint only warns, and knows none of the validators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prime_train.config.json_schema import DRAFT, of_field
from prime_train.config.prime_rl.schema import SchemaGeneration
from prime_train.config.schema import Table, choices, table_below

Schema = dict[str, Any]


def json_schema(generation: SchemaGeneration, root: str) -> Schema:
    """The schema of one of a generation's files, such as `rl`, in draft 7, which taplo and most editors read."""
    found: dict[str, Schema] = {}
    waiting = [generation.roots[root]]
    while waiting:
        table = waiting.pop()
        if table.name not in found:
            found[table.name] = _of_table(table)
            below = (table_below(item.shape)[0] for item in table.fields.values())
            waiting.extend(each for each in below if each is not None)
    whole = found.pop(generation.roots[root].name)
    own = {"prime_train": {"type": "object", "description": "Settings of prime-train; prime-rl does not see them."}}
    return {
        "$schema": DRAFT,
        "title": f"{root} of prime-rl {generation.name}",
        **whole,
        "properties": whole["properties"] | own,
        "definitions": found,
    }


def _of_table(table: Table) -> Schema:
    properties = {name: {} if _is_of_plugin(table, name) else of_field(item) for name, item in table.fields.items()}
    properties |= {alias: properties[name] for alias, name in table.aliases.items()}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": table.may_be_open}
    conditions = list(_members(table)) if table.tag in table.fields else _required(table, None)
    return schema | ({"allOf": conditions} if conditions else {})


def _members(table: Table) -> Iterator[Schema]:
    """A condition for each member of a union: the keys that it has, and those that it needs."""
    tag = table.fields[table.tag]
    for member in choices(tag):
        chosen: Schema = {"properties": {table.tag: {"const": member}}}
        if member != tag.default:
            chosen["required"] = [table.tag]
        others = [
            spelling
            for item in table.fields.values()
            if item.when and member not in item.when
            for spelling in (item.key, *item.aliases)
        ]
        own = {name: of_field(item) for name, item in table.fields.items() if _is_of_plugin(table, name, member)}
        needs: Schema = {"properties": own | dict.fromkeys(others, False)} if own or others else {}
        required = _required(table, member)
        if not table.is_open(member) and table.may_be_open:
            needs["propertyNames"] = {"enum": [*table.fields, *table.aliases]}
        if required:
            needs["allOf"] = required
        if needs:
            yield {"if": chosen, "then": needs}


def _is_of_plugin(table: Table, name: str, member: str = "") -> bool:
    """Whether a key is one of a listed plug-in, or of `member`: another plug-in may have it with another type."""
    item = table.fields[name]
    return table.names_plugins and bool(item.when) and (not member or member in item.when)


def _required(table: Table, member: str | None) -> list[Schema]:
    """A condition for each required key, which the file may have under an alias."""
    spellings = ((item.key, *item.aliases) for item in table.required(member))
    return [{"anyOf": [{"required": [spelling]} for spelling in each]} for each in spellings]
