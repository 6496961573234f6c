"""Walks the values of a prime-rl file along its generation's table and collects every fault. Pure.

prime-rl uses pydantic's lax mode, so a value that pydantic converts without loss is a warning, not an error.
Source: docs.pydantic.dev, Conversion table, lax mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from prime_train.config import validate_value as plain
from prime_train.config.parsed_config import MISSING_KEY, NOT_A_CHOICE, OTHER_MEMBER, SET_TWICE, WRONG_TYPE, Fault
from prime_train.config.prime_rl.schema import Generation, Row, TableRows
from prime_train.config.schema import Array, Choice, Flag, Number, Shape, Text
from prime_train.config.validate_value import is_shallow, type_fault
from prime_train.core.findings import Severity
from prime_train.spec.annotations import Limit
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted, to_toml, value_at

_MAX_REFUSED_ENTRIES = 20  # faults that are reported for one array
_MAX_UNLISTED = 2000  # unlisted keys that are checked in one table, because a hundred thousand take seconds


@dataclass(slots=True)
class Walk:
    """The input and the results of one walk. `aliased`: the key in the table -> the alias that the file uses."""

    generation: Generation
    root: str
    values: Mapping[str, Any]
    whole: bool  # whether the file is the whole run; an overlay may omit required keys
    faults: list[Fault] = field(default_factory=list)
    aliased: dict[KeyPath, KeyPath] = field(default_factory=dict)
    guesses: int = 0


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
    """Whether prime-rl cannot tell the member of a union: it fills in a missing `type`, and no other tag, and that from
    the table's default alone. Source: prime-pydantic-config 0.4.3, BaseConfig._default_discriminator_types."""
    known = bool(table.tag) and table.row(table.tag) is not None
    return known and table.tag not in values and (row.default is None or table.tag != "type")


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


NONE = "None"  # in a prime-rl file, an optional key without a value, because TOML has no null
_WHOLE = r"(?a)([+-]?\d+(?:_\d+)*)(?:\.0+)?"  # pydantic reads "100.0" as 100, and refuses "1e2"
_TRUE, _FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")


def value_fault(row: Row, value: Any, key: KeyPath) -> Fault | None:
    """The fault of the value of a key that is not a table; None if the value is legal."""
    if "any" in row.words or (value == NONE and row.optional):
        return None
    if value == NONE and "text" in row.words:
        what = f"{dotted(key)} = {to_toml(value)}: prime-rl reads this as no value, and the key needs one"
        return Fault(WRONG_TYPE, key, what, f"take it out, for the default, or give {expected(row)}")
    if isinstance(value, str) and "text" in row.words:
        return None
    choices = () if any("[choice]" in word for word in row.words) else row.choices  # those are of the elements
    if isinstance(value, str) and value in choices:
        return None
    if isinstance(value, dict):
        inner = _inside(row, "map")
        if inner is None:
            return _wrong_type(row, value, key)
        entries = value.items() if inner else ()
        return next(
            (fault for name, item in entries if (fault := _element_fault(row, inner, item, (*key, name)))), None
        )
    if isinstance(value, list):
        inner = _inside(row, "list")
        if inner is None:
            return _wrong_type(row, value, key)
        return next(
            (fault for i, item in enumerate(value) if (fault := _element_fault(row, inner, item, (*key, i)))), None
        )
    for word in row.words:
        if word in ("whole", "number", "flag") and _is(word, value):
            return plain.value_fault(_shape(row, word), value, key, row.default)
    if isinstance(value, str) and choices:
        converted = convert(row, value)
        return _no_choice(row, value, key) if converted is None else _lax(value, converted, key)
    return _wrong_type(row, value, key)


def fits(row: Row, value: Any) -> bool:
    """Whether the value is legal for a key, for guessing which key the user meant."""
    if "any" in row.words:
        return True
    if isinstance(value, dict):
        return bool(row.table or row.map) or _inside(row, "map") is not None
    if isinstance(value, list) and row.array:
        return True
    holds_table = row.table or row.map or row.array
    return not (holds_table and not row.words and not row.choices) and value_fault(row, value, ()) is None


def _inside(row: Row, container: str) -> str | None:
    """The word for the elements of a list or map: "text", "" for any value; None if the row has no such container."""
    for word in row.words:
        name, _, inner = word.partition("[")
        if name == container:
            return inner[:-1] if inner not in ("any]", "none]") else ""
    return None


def _element_fault(row: Row, inner: str, value: Any, key: KeyPath) -> Fault | None:
    entry = Row(words=() if inner == "choice" else (inner or "any",), choices=row.choices if inner == "choice" else ())
    return value_fault(entry, value, key)


def _is(word: str, value: Any) -> bool:
    if word == "flag":
        return isinstance(value, bool)
    return not isinstance(value, bool) and isinstance(value, int if word == "whole" else (int, float))


@cache
def _shape(row: Row, word: str) -> Shape:
    match word.partition("[")[0]:
        case "whole" | "number":
            return Number(word == "whole", tuple(Limit(sign, limit) for sign, limit in row.bounds))
        case "flag":
            return Flag()
        case "list":
            return Array(Text())
        case _:
            return Text()


def _no_choice(row: Row, value: str, key: KeyPath) -> Fault:
    fault = plain.value_fault(Choice(row.choices), value, key)
    if fault is not None and not any(word in ("whole", "number", "flag") for word in row.words):
        return fault
    meant = nearest(value, row.choices)
    name = dotted(key)
    what = f"{name} = {plain.describe_short(value)}: must be {expected(row)}"
    fix = f"{name} = {to_toml(meant)}" if meant else f"give {expected(row)}"
    return Fault(NOT_A_CHOICE, key, what, fix, {name: meant} if meant else {})


def _wrong_type(row: Row, value: Any, key: KeyPath) -> Fault:
    converted = convert(row, value)
    if converted is not None:
        return _lax(value, converted, key)
    words = [word for word in row.words if word != "none"]
    if len(words) == 1 and not row.choices and words[0] != "map" and not isinstance(value, list):
        fault = plain.value_fault(_shape(row, words[0]), value, key, row.default)
        if fault is not None:
            return fault
    if isinstance(value, list) and len(value) == 1 and value_fault(row, value[0], key) is None:
        fix = f"{dotted(key)} = {plain.describe_short(value[0])}"
        return plain.type_fault(key, expected(row), value, fix, {dotted(key): value[0]})
    return plain.type_fault(key, expected(row), value, f"give {expected(row)}")


def _lax(value: Any, converted: Any, key: KeyPath) -> Fault:
    name = dotted(key)
    what = f"{name} is {plain.describe(value)}; prime-rl reads it as {to_toml(converted)}"
    return Fault(
        WRONG_TYPE, key, what, f"{name} = {to_toml(converted)}", {name: converted}, severity=Severity.WARNING, safe=True
    )


def convert(row: Row, value: Any) -> Any:
    """The value as pydantic converts it; None if pydantic refuses."""
    made = (_convert_without_loss(word, value) for word in row.words)
    return next((each for each in made if each is not None and value_fault(row, each, ()) is None), None)


def _convert_without_loss(word: str, value: Any) -> Any:
    match word, value:
        case "flag", str():
            return True if value.lower() in _TRUE else False if value.lower() in _FALSE else None
        case "flag", 0 | 1:
            return value == 1
        case "whole" | "number", bool():
            return int(value)
        case "whole", float() if value.is_integer():
            return int(value)
        case "whole", str():
            return int(re.sub("_", "", found[1])) if (found := re.fullmatch(_WHOLE, value.strip())) else None
        case "number", str() if value.isascii() and not ("_" in value and value != value.strip()):
            try:
                return float(value)
            except ValueError:
                return None
        case _:
            return None


def expected(row: Row) -> str:
    """A description of the legal values of a key."""
    words = [word for word in row.words if word != "none"]
    names = ["a table" if word.startswith("map") else plain.expected(_shape(row, word)) for word in words]
    if row.table or row.map:
        names.append("a table")
    if row.array:
        names.append("an array of tables")
    if row.choices and not any(word.startswith("list[") for word in words):
        names.append(plain.expected(Choice(row.choices)))
    return " or ".join(dict.fromkeys(names))
