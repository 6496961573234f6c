"""Validates the values of a prime-rl file along its generation's table and collects every fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.config.parsed_config import (
    GENERATION,
    MISSING_KEY,
    OTHER_MEMBER,
    PASSED_THROUGH,
    SET_TWICE,
    Fault,
)
from prime_train.config.prime_rl import suggest
from prime_train.config.prime_rl.schema import SchemaGeneration
from prime_train.config.prime_rl.validate_value import value_fault
from prime_train.config.schema import ANY_TAG, Array, Field, Table, choices, table_below
from prime_train.config.validate import walk_table
from prime_train.config.validate_value import expected
from prime_train.toml.document import KeyPath, dotted, to_toml

_MAX_UNLISTED = 2000  # unlisted keys that are judged, because a hundred thousand take seconds
_RUN_TABLES = {"sft": ("model", "data"), "trainer": ("model", "data", "optim")}  # by root


class PrimeRlWalk:
    """The input and the results of one walk. `aliased`: the key in the table -> the alias that the file uses.

    `whole`: whether the file is the whole run; an overlay may omit required keys.
    """

    judges_each = False

    def __init__(self, generation: SchemaGeneration, root: str, values: Mapping[str, Any], whole: bool) -> None:
        self.generation, self.root, self.values, self.whole = generation, root, values, whole
        self.faults: list[Fault] = []
        self.aliased: dict[KeyPath, KeyPath] = {}
        self.unlisted = 0  # keys that no table lists

    def find(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Field | None:
        key, member = str(at[-1]), table.member(values)
        item = table.fields.get(key)
        if item is None:
            return self._find_unlisted(table, member, values, at)
        if item.when and member not in (None, *item.when) and (member != ANY_TAG or table.names_plugins):
            if not table.is_open(member):
                self.faults.append(_other_member(table, item, at, values))
            return None
        return item

    def _find_unlisted(self, table: Table, member: str | None, values: Mapping[str, Any], at: KeyPath) -> Field | None:
        """The field of an alias. Another key is passed on by prime-rl, or a fault."""
        canonical = table.aliases.get(str(at[-1]))
        if canonical is None:
            self.unlisted += 1
            if self.unlisted <= _MAX_UNLISTED:
                explain = suggest.check_passed_key if table.is_open(member) else suggest.explain_unknown
                self.faults.extend(explain(self, table, at, values[str(at[-1])]))
            return None
        self.aliased[(*at[:-1], canonical)] = at
        if canonical in values:
            what = f"{dotted(at)} is another word for {canonical}, which is set too"
            self.faults.append(Fault(SET_TWICE, at, what, f"keep {dotted((*at[:-1], canonical))} alone"))
        return table.fields[canonical]

    def judge(self, item: Field, value: Any, at: KeyPath) -> Iterator[Fault]:
        fault = value_fault(item, value, at)
        if fault is not None:
            yield fault
        elif isinstance(value, dict) and "vllm" in str(at[-1]):
            for name, each in value.items():
                yield from suggest.check_vllm_key(self, (*at, name), each, ())

    def find_missing(self, table: Table, values: Mapping[str, Any], at: KeyPath) -> Iterator[Fault]:
        if not self.whole:
            return
        for item in table.required(table.member(values)):
            if values.keys().isdisjoint((item.key, *item.aliases)):
                yield _missing(item, (*at, item.key))
        if _lacks_tag(self.generation.find(self.root, at), table, values) and not any(
            fault.code == OTHER_MEMBER and fault.key[: len(at)] == at for fault in self.faults
        ):
            yield _missing_tag(table, at)


def walk(generation: SchemaGeneration, root: str, values: Mapping[str, Any], *, whole: bool) -> PrimeRlWalk:
    """The finished walk."""
    state = PrimeRlWalk(generation, root, values, whole)
    walk_table(state, generation.roots[root], values)
    return state


def is_error(fault: Fault) -> bool:
    """Whether prime-rl ends because of the fault."""
    return fault.severity is None and fault.code not in (PASSED_THROUGH, GENERATION)


def is_overlay(generation: SchemaGeneration, root: str, values: Mapping[str, Any]) -> bool:
    """Whether the file is clearly meant to be merged onto another one.

    For a root with required keys: all of them are missing, or some are and the file has only tables. (A whole run has a
    plain key at its top: max_steps, seq_len, output_dir.) For a root without: the file has neither model nor data.
    """
    required = [item.key for item in generation.roots[root].required()]
    if not required:
        return root in _RUN_TABLES and values.keys().isdisjoint(_RUN_TABLES[root])
    missing = [key for key in required if key not in values]
    only_tables = all(isinstance(value, dict) for value in values.values())
    return "toml_files" in values or (bool(missing) and (len(missing) == len(required) or only_tables))


def _other_member(table: Table, item: Field, path: KeyPath, values: Mapping[str, Any]) -> Fault:
    tag = dotted((*path[:-1], table.tag))
    member = table.member(values)
    actual = f"{tag} = {member}" + ("" if table.tag in values else ", its default")
    what = f"{dotted(path)} belongs to {tag} = {' or '.join(item.when)}; here {actual}"
    fix = f"{tag} = {item.when[0]!r} with it, or take {path[-1]} out".replace("'", '"')
    patch = {tag: item.when[0]} if table.tag not in values and len(item.when) == 1 else {}
    return Fault(OTHER_MEMBER, path, what, fix, patch)


def _lacks_tag(item: Field | None, table: Table, values: Mapping[str, Any]) -> bool:
    """Whether prime-rl cannot find the member of a union.

    It fills in a missing `type`, and no other tag, and that from the table's default alone, which a factory is not.

    Source: prime-pydantic-config 0.4.3, BaseConfig._default_discriminator_types.
    """
    if item is None or table_below(item.shape)[1] or table.tag in values or table.tag not in table.fields:
        return False
    if table.names_plugins:
        return False
    return item.default is None or item.is_late or table.tag != "type"


def _missing_tag(table: Table, at: KeyPath) -> Fault:
    key, tag = dotted((*at, table.tag)), table.fields[table.tag]
    what = f"{key} is missing, and prime-rl has no default for it in this table"
    if tag.default not in choices(tag):
        return Fault(MISSING_KEY, (*at, table.tag), what, f"{key} = ...: one of {', '.join(choices(tag))}")
    return Fault(MISSING_KEY, (*at, table.tag), what, f"{key} = {to_toml(tag.default)}", {key: tag.default})


def _missing(item: Field, at: KeyPath) -> Fault:
    key = dotted(at)
    if table_below(item.shape)[0] is not None:
        head = f"[[{key}]]" if isinstance(item.shape, Array) else f"[{key}]"
        return Fault(MISSING_KEY, at, f"the table {head} is missing", f"add {head}")
    return Fault(MISSING_KEY, at, f"{key} is missing", f"{key} = ...: {expected(item.shape)}")
