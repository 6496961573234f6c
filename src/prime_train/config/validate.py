"""Validates the values of a run.toml or a recipe: builds the value and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.config.parsed_config import MISSING_KEY, SYNTAX, UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Field, Table, field_name
from prime_train.config.validate_value import describe_unknown, expected, name_table, value_fault
from prime_train.config.walk import REFUSED, walk_table
from prime_train.toml.document import Document, KeyPath, dotted

_MAX_GUESSES = 200  # unknown keys that are compared with every legal key; a file with more is not a config
_MAX_UNKNOWN = 2000  # unknown keys that are reported, because a million of them take seconds


class _RunTomlWalk:
    """The input and the faults of one walk. `other_names`: keys of other tools -> our dotted key."""

    judges_each = True

    def __init__(self, root: Table, values: Mapping[str, Any], other_names: Mapping[str, str], whole: bool) -> None:
        self.root, self.values, self.other_names, self.whole = root, values, other_names, whole
        self.faults: list[Fault] = []
        self.unknown = 0

    def find(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Field | None:
        item = table.fields.get(str(at[-1]))
        if item is None:
            self.unknown += 1
            if self.unknown <= _MAX_UNKNOWN:
                self.faults.append(_unknown(self, table, at, values[str(at[-1])]))
        return item

    def judge(self, item: Field, value: Any, at: KeyPath) -> Iterator[Fault]:
        fault = value_fault(item.shape, value, at, item.default)
        if fault is not None:
            yield fault

    def find_missing(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Iterator[Fault]:
        if self.whole:
            yield from (_missing(item, (*at, item.key)) for item in table.required() if item.key not in values)


def walk(
    root: Table, values: Mapping[str, Any], other_names: Mapping[str, str], *, whole: bool = True
) -> tuple[Any, list[Fault]]:
    """(the value that `root` makes, every fault). A field with a fault takes its default.

    The value is None if a field without a default is missing or has a fault. Only a `whole` file misses keys.
    """
    state = _RunTomlWalk(root, values, other_names, whole)
    built = walk_table(state, root, values)
    faults = [
        fault if fault.code == UNKNOWN_KEY else fault._replace(shadows=field_name(root, fault.key))
        for fault in state.faults
    ]
    return (None if built is REFUSED else built), faults


def walk_document(root: Table, document: Document, other_names: Mapping[str, str]) -> tuple[Any, list[Fault]]:
    """`walk` over a document. If it is not valid TOML, the value is None and missing keys are not faults."""
    built, faults = walk(root, document.values, other_names, whole=document.fault is None)
    if document.fault is None:
        return built, faults
    fix = document.fault.fix or "correct the line; what stands in it is unread"
    return None, [Fault(SYNTAX, (), document.fault.what, fix), *faults]


def _missing(item: Field, at: KeyPath) -> Fault:
    key = dotted(at)
    match item.shape:
        case Table() as table:
            required = ", ".join(each.key for each in table.required())
            header = name_table(at)
            what, fix = f"the table {header} is missing", f"add {header} with {required}"
        case Array(item=Table()):
            what, fix = f"{key} is missing", f"add a {name_table((*at, 0))} table"
        case shape:
            what, fix = f"{key} is missing", f"{key} = ...: {expected(shape)}. {item.doc}"
    return Fault(MISSING_KEY, at, what, fix)


def _unknown(state: _RunTomlWalk, table: Table, path: KeyPath, value: Any) -> Fault:
    from prime_train.config.suggest import Known, explain_unknown  # most files have no such key

    if state.unknown > _MAX_GUESSES:
        fix = f"take it out; {name_table(path[:-1])} knows {', '.join(table.fields)}"
        return Fault(UNKNOWN_KEY, path, describe_unknown(path, value), fix)
    return explain_unknown(Known(state.root, state.values, state.other_names), table, path, value)
