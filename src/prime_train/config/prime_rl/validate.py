"""Walks the values of a prime-rl file along its generation's table and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.config.parsed_config import MISSING_KEY, OTHER_MEMBER, SET_TWICE, Fault
from prime_train.config.prime_rl.schema import Generation, Row, TableRows
from prime_train.config.prime_rl.validate_value import NONE, expected, value_fault
from prime_train.config.validate_value import is_shallow, type_fault
from prime_train.toml.document import KeyPath, dotted, to_toml, value_at

_MAX_REFUSED_ENTRIES = 20  # faults that are reported for one array
_MAX_UNLISTED = 2000  # unlisted keys that are checked in one table, because a hundred thousand take seconds


class Walk:
    """The input and the results of one walk. `aliased`: the key in the table -> the alias that the file uses.

    `whole`: whether the file is the whole run; an overlay may omit required keys.
    """

    __slots__ = ("aliased", "faults", "generation", "guesses", "root", "values", "whole")

    def __init__(self, generation: Generation, root: str, values: Mapping[str, Any], whole: bool) -> None:
        self.generation, self.root, self.values, self.whole = generation, root, values, whole
        self.faults: list[Fault] = []
        self.aliased: dict[KeyPath, KeyPath] = {}
        self.guesses = 0


def walk(generation: Generation, root: str, values: Mapping[str, Any], *, whole: bool) -> Walk:
    """The finished walk."""
    state = Walk(generation, root, values, whole)
    _table(state, generation.root(root), values, ())
    return state


def _table(state: Walk, table: TableRows, values: Mapping[str, Any], at: KeyPath) -> None:
    member = table.member(values)
    unlisted = 0
    for key, value in values.items():
        row = table.row(key)
        if row is None:
            unlisted += 1
            if unlisted <= _MAX_UNLISTED:
                _unlisted(state, table, member, at, key, value)
        elif row.when and member and member not in row.when:
            if not table.is_open(member):
                state.faults.append(_other_member(table, row, (*at, key), values))
        else:
            _value(state, row, value, (*at, key))
    if state.whole:
        for key in table.required(member):
            row = table.row(key)
            if row is not None and key not in values and not any(alias in values for alias in row.aliases):
                state.faults.append(_missing(row, (*at, key)))


def _unlisted(state: Walk, table: TableRows, member: str | None, at: KeyPath, key: str, value: Any) -> None:
    """Handles a key that the table does not list: an alias, a key that prime-rl passes on, or a fault."""
    from prime_train.config.prime_rl import suggest  # lazy, because most files have no such key

    canonical = table.alias(key)
    row = table.row(canonical) if canonical else None
    if canonical is None or row is None:
        state.faults.extend(suggest.check_passed_key(state, table, (*at, key), value) if table.is_open(member) else ())
        if not table.is_open(member):
            state.faults.extend(suggest.explain_unknown(state, table, at, key, value))
        return
    state.aliased[(*at, canonical)] = (*at, key)
    around = value_at(state.values, at)
    if isinstance(around, dict) and canonical in around:
        what = f"{dotted((*at, key))} is another word for {canonical}, which is set too"
        state.faults.append(Fault(SET_TWICE, (*at, key), what, f"keep {dotted((*at, canonical))} alone"))
    _value(state, row, value, (*at, key))


def _value(state: Walk, row: Row, value: Any, at: KeyPath) -> None:
    below = state.generation.below(row)
    if below is not None and row.table and isinstance(value, dict):
        before = len(state.faults)
        _table(state, below, value, at)
        if state.whole and _lacks_tag(row, below, value) and all(f.code != OTHER_MEMBER for f in state.faults[before:]):
            state.faults.append(_missing_tag(below, at))
    elif below is not None and row.map and isinstance(value, dict):
        for name, entry in value.items():
            _entry(state, below, entry, (*at, name))
    elif below is not None and row.array and isinstance(value, list):
        before = len(state.faults)
        for number, entry in enumerate(value):
            _entry(state, below, entry, (*at, number))
            if len(state.faults) - before >= _MAX_REFUSED_ENTRIES:
                break
    elif below is not None:
        if not (value == NONE and row.optional):
            _not_a_table(state, row, value, at)
    else:
        fault = value_fault(row, value, at)
        if fault is not None:
            state.faults.append(fault)
        elif isinstance(value, dict) and "vllm" in str(at[-1]):
            from prime_train.config.prime_rl import suggest

            for name, each in value.items():
                state.faults.extend(suggest.check_vllm_key(state, (*at, name), each, ()))


def _entry(state: Walk, table: TableRows, value: Any, at: KeyPath) -> None:
    if isinstance(value, dict):
        _table(state, table, value, at)
    else:
        state.faults.append(type_fault(at, "a table", value, f"[{dotted(at)}] with its keys below"))


def _not_a_table(state: Walk, row: Row, value: Any, at: KeyPath) -> None:
    """Judges a value in place of a table. Some keys may hold a table or a plain value."""
    name = dotted(at)
    if row.choices or [word for word in row.words if word != "none"]:
        fault = value_fault(row, value, at)
        state.faults.extend([fault] if fault is not None else [])
    elif row.array and isinstance(value, dict):
        fix, patch = f"[[{name}]] with two brackets: there may be several", {name: [value]} if is_shallow(value) else {}
        state.faults.append(type_fault(at, expected(row), value, fix, patch))
    else:
        state.faults.append(type_fault(at, expected(row), value, f"[{name}] with its keys below"))


def _other_member(table: TableRows, row: Row, path: KeyPath, values: Mapping[str, Any]) -> Fault:
    tag = dotted((*path[:-1], table.tag))
    member = table.member(values)
    actual = f"{tag} = {member}" + ("" if table.tag in values else ", its default")
    what = f"{dotted(path)} belongs to {tag} = {' or '.join(row.when)}; here {actual}"
    fix = f"{tag} = {row.when[0]!r} with it, or take {path[-1]} out".replace("'", '"')
    patch = {tag: row.when[0]} if table.tag not in values and len(row.when) == 1 else {}
    return Fault(OTHER_MEMBER, path, what, fix, patch)


def _lacks_tag(row: Row, table: TableRows, values: Mapping[str, Any]) -> bool:
    """Whether prime-rl cannot find the member of a union: it fills in a missing `type`, and no other tag, and that from
    the table's default alone, which a factory is not. Source: prime-pydantic-config 0.4.3,
    BaseConfig._default_discriminator_types."""
    known = bool(table.tag) and table.row(table.tag) is not None
    return known and table.tag not in values and (row.default is None or row.factory or table.tag != "type")


def _missing_tag(table: TableRows, at: KeyPath) -> Fault:
    key = dotted((*at, table.tag))
    row = table.row(table.tag)
    legal = row.choices if row is not None else ()
    usual = row.default if row is not None and row.default in legal else None
    what = f"{key} is missing, and prime-rl has no default for it in this table"
    if usual is None:
        return Fault(MISSING_KEY, (*at, table.tag), what, f"{key} = ...: one of {', '.join(legal)}")
    return Fault(MISSING_KEY, (*at, table.tag), what, f"{key} = {to_toml(usual)}", {key: usual})


def _missing(row: Row, at: KeyPath) -> Fault:
    key = dotted(at)
    if row.table or row.array or row.map:
        head = f"[[{key}]]" if row.array else f"[{key}]"
        return Fault(MISSING_KEY, at, f"the table {head} is missing", f"add {head}")
    return Fault(MISSING_KEY, at, f"{key} is missing", f"{key} = ...: {expected(row)}")
