"""Walks the values of a prime-rl file along the table of its generation and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_train.config.parsed_config import MISSING_KEY, OTHER_MEMBER, SAID_TWICE, WRONG_TYPE, Fault
from prime_train.config.prime_rl.schema import Generation, Row, TableRows
from prime_train.config.prime_rl.validate_value import NONE, expected, value_fault
from prime_train.config.validate_value import describe, is_shallow
from prime_train.toml.document import KeyPath, dotted

_MAX_REFUSED_ENTRIES = 20  # told of one array: nobody reads on
_MAX_UNLISTED = 2000  # keys of one table: a file with more is something else, and a hundred thousand take seconds


@dataclass(slots=True)
class Walk:
    """What one walk knows and collects. `aliased`: the key of a table -> the word that the file has for it."""

    generation: Generation
    root: str
    values: Mapping[str, Any]
    whole: bool  # whether the file is all of the run: an overlay may leave required keys out
    faults: list[Fault] = field(default_factory=list)
    aliased: dict[KeyPath, KeyPath] = field(default_factory=dict)
    guesses: int = 0

    @property
    def name(self) -> str:
        return f"prime-rl {self.generation.name}"


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
        elif row.when and member is not None and member and member not in row.when:
            state.faults.append(_other_member(table, row, (*at, key), values))
        else:
            _value(state, row, value, (*at, key))
    if state.whole:
        for key in table.required(member):
            row = table.row(key)
            if row is not None and key not in values and not any(alias in values for alias in row.aliases):
                state.faults.append(_missing(row, (*at, key)))


def _unlisted(state: Walk, table: TableRows, member: str | None, at: KeyPath, key: str, value: Any) -> None:
    """A key that the table does not list: another word for one, one that passes, or a fault."""
    from prime_train.config.prime_rl import suggest  # here: most files have no such key

    canonical = table.alias(key)
    row = table.row(canonical) if canonical else None
    if canonical is None or row is None:
        state.faults.extend(suggest.passing(state, table, (*at, key), value) if table.is_open(member) else ())
        if not table.is_open(member):
            state.faults.extend(suggest.unknown(state, table, at, key, value))
        return
    state.aliased[(*at, canonical)] = (*at, key)
    around = suggest.lookup(state.values, at)
    if isinstance(around, dict) and canonical in around:
        what = f"{dotted((*at, key))} is another word for {canonical}, which is set too"
        state.faults.append(Fault(SAID_TWICE, (*at, key), what, f"keep {dotted((*at, canonical))} alone"))
    _value(state, row, value, (*at, key))


def _value(state: Walk, row: Row, value: Any, at: KeyPath) -> None:
    if (row.table or row.map) and isinstance(value, dict):
        below = state.generation.below(row)
        assert below is not None
        if row.table:
            _table(state, below, value, at)
        else:
            for name, entry in value.items():
                _entry(state, below, entry, (*at, name))
    elif row.array and isinstance(value, list):
        _array(state, row, value, at)
    elif row.table or row.map or row.array:
        if not (value == NONE and row.optional):
            _not_a_table(state, row, value, at)
    else:
        fault = value_fault(row, value, at)
        if fault is not None:
            state.faults.append(fault)
        elif isinstance(value, dict) and "vllm" in str(at[-1]):
            from prime_train.config.prime_rl import suggest

            for name, each in value.items():
                state.faults.extend(suggest.passing_vllm(state, (*at, name), each, ()))


def _array(state: Walk, row: Row, values: list[Any], at: KeyPath) -> None:
    below = state.generation.below(row)
    assert below is not None
    before = len(state.faults)
    for number, entry in enumerate(values):
        _entry(state, below, entry, (*at, number))
        if len(state.faults) - before >= _MAX_REFUSED_ENTRIES:
            break


def _entry(state: Walk, table: TableRows, value: Any, at: KeyPath) -> None:
    if isinstance(value, dict):
        _table(state, table, value, at)
    else:
        what = f"{dotted(at)} must be a table, not {describe(value)}"
        state.faults.append(Fault(WRONG_TYPE, at, what, f"[{dotted(at)}] with its keys below"))


def _not_a_table(state: Walk, row: Row, value: Any, at: KeyPath) -> None:
    """A value where a table belongs; some tables may be a plain value too."""
    if row.choices or [word for word in row.words if word != "none"]:
        fault = value_fault(row, value, at)
        state.faults.extend([fault] if fault is not None else [])
        return
    name = dotted(at)
    what = f"{name} must be {expected(row)}, not {describe(value)}"
    if row.array and isinstance(value, dict):
        patch = {name: [value]} if is_shallow(value) else {}
        state.faults.append(Fault(WRONG_TYPE, at, what, f"[[{name}]] with two brackets: there may be several", patch))
    else:
        state.faults.append(Fault(WRONG_TYPE, at, what, f"[{name}] with its keys below"))


def _other_member(table: TableRows, row: Row, path: KeyPath, values: Mapping[str, Any]) -> Fault:
    tag = dotted((*path[:-1], table.tag))
    member = table.member(values)
    said = f"{tag} = {member}" + ("" if table.tag in values else ", its default")
    members = " or ".join(row.when)
    what = f"{dotted(path)} belongs to {tag} = {members}; here {said}"
    fix = f"{tag} = {row.when[0]!r} with it, or take {path[-1]} out".replace("'", '"')
    patch = {tag: row.when[0]} if table.tag not in values and len(row.when) == 1 else {}
    return Fault(OTHER_MEMBER, path, what, fix, patch)


def _missing(row: Row, at: KeyPath) -> Fault:
    key = dotted(at)
    if row.table or row.array or row.map:
        head = f"[[{key}]]" if row.array else f"[{key}]"
        return Fault(MISSING_KEY, at, f"the table {head} is missing", f"add {head}")
    return Fault(MISSING_KEY, at, f"{key} is missing", f"{key} = ...: {expected(row)}")
