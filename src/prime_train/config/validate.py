"""Validates the values of a run.toml or a recipe: builds the value and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.config.parsed_config import MISSING_KEY, SYNTAX, UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Field, Shape, Table, walk_fields
from prime_train.config.validate_value import describe_unknown, expected, misplaced, name_table, value_fault
from prime_train.config.walk import REFUSED, walk_table
from prime_train.toml.did_you_mean import edit_distance, nearest
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
        fault if fault.code == UNKNOWN_KEY else fault._replace(shadows=_field_name(root, fault.key))
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
            what, fix = f"the table [{key}] is missing", f"add [{key}] with {required}"
        case Array(item=Table()):
            what, fix = f"{key} is missing", f"add a [[{key}]] table"
        case shape:
            what, fix = f"{key} is missing", f"{key} = ...: {expected(shape)}. {item.doc}"
    return Fault(MISSING_KEY, at, what, fix)


def _unknown(state: _RunTomlWalk, table: Table, path: KeyPath, value: Any) -> Fault:
    what, (meant, why_there, safe) = describe_unknown(path, value), _meant(state, table, path, value)
    if meant is None:
        fix = f"take it out; {name_table(path[:-1])} knows {', '.join(table.fields)}"
        return Fault(UNKNOWN_KEY, path, what, fix)
    fault = Fault(UNKNOWN_KEY, path, f"{what}; {why_there}", "", safe=safe)
    return misplaced(state.values, fault, value, meant, _field_name(state.root, meant))


def _meant(state: _RunTomlWalk, table: Table, path: KeyPath, value: Any) -> tuple[KeyPath | None, str, bool]:
    """(the key that the user meant, the reason, whether it is certain): a misspelt key, another table's key, another
    tool's name for it. A table is no key of another table."""
    if state.unknown > _MAX_GUESSES:
        return None, "", False
    key, legal = str(path[-1]), list(table.fields)
    close = nearest(key, legal)
    plain = key.lower().replace("-", "_")
    known = state.other_names.get(dotted((*path[:-1], plain))) or state.other_names.get(plain)
    if known and not (close and known.endswith(f".{close}")):
        return tuple(known.split(".")), f"its name here is {known}", True
    leaves = [] if isinstance(value, dict) else _leaves(state.root)
    homes = [leaf for leaf in leaves if leaf[-1] == key]
    if homes:
        return homes[0], f"it belongs in [{dotted(homes[0][:-1])}]", len(homes) == 1
    if close:
        return (*path[:-1], close), f"did you mean {close}?", 4 * edit_distance(key, close) <= len(key)
    far = nearest(key, {leaf[-1] for leaf in leaves})
    homes = [leaf for leaf in leaves if leaf[-1] == far]
    return (homes[0], f"did you mean {dotted(homes[0])}?", False) if homes else (None, "", False)


def _leaves(table: Table) -> list[tuple[str, ...]]:
    return [path for path, _, item in walk_fields(table) if not isinstance(item.shape, Table)]


def _field_name(table: Table, key: KeyPath) -> str:
    """The RunSpec field of a key path."""
    names: list[str] = []
    shape: Shape = table
    for part in key:
        if isinstance(shape, Array):
            names.append(str(part))
            shape = shape.item
        elif isinstance(shape, Table) and part in shape.fields:
            item = shape.fields[str(part)]
            names.append(item.name)
            shape = item.shape
    return ".".join(names)
