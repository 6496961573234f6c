"""Reads prime-rl's config files: one text, or several merged, become a RunSpec with every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from prime_train.config.parsed_config import (
    GENERATION,
    OTHER_GENERATION,
    OTHER_MEMBER,
    PASSED_THROUGH,
    SET_TWICE,
    SYNTAX,
    Fault,
    Reading,
)
from prime_train.config.prime_rl.detect_generation import GenerationChoice, choose, judge_values
from prime_train.config.prime_rl.field_values import FieldSource
from prime_train.config.prime_rl.newer import doubt_errors
from prime_train.config.prime_rl.run import run_of
from prime_train.config.prime_rl.schema import SchemaGeneration, generations, load, months, newest
from prime_train.config.prime_rl.validate import is_overlay
from prime_train.core.findings import Severity
from prime_train.spec.answers import prime_rl_of, replace_parts
from prime_train.spec.supervision import PrimeTrain
from prime_train.toml.document import Document, dotted

DIALECT = "prime-rl"
OWN_TABLE = "prime_train"  # it is removed before prime-rl reads the file

_CORRECT = "correct the line; keys that stand in it are unread"
_HARMLESS = (PASSED_THROUGH, GENERATION, OTHER_MEMBER, SET_TWICE)


def choose_if_prime_rl(
    values: Mapping[str, Any], path: str, count_otherwise: Callable[[], int] = lambda: 0, *, is_no_other: bool = False
) -> GenerationChoice | None:
    """The generation and root of values that are probably a prime-rl file; None for other values.

    A table of prime-rl must have at least half of the keys, and more than `count_otherwise()`, the number of keys that
    another format has. With `is_no_other`, a key is of no other format, so a file without unknown keys is certain.
    """
    theirs = {key: value for key, value in values.items() if key != OWN_TABLE}
    if not theirs:
        return None
    named = _named_generation(values)
    choice = choose(theirs, path, named, None)
    if named is not None or (is_no_other and not choice.unknown):
        return choice
    known_otherwise = count_otherwise()
    is_theirs = choice.known > known_otherwise and (choice.known >= choice.unknown or not known_otherwise)
    return choice if is_theirs else None


def _named_generation(values: Mapping[str, Any]) -> str | None:
    """The value of prime_rl in [prime_train], legal or not."""
    own = values.get(OWN_TABLE)
    named = own.get("prime_rl") if isinstance(own, dict) else None
    return named if isinstance(named, str) else None


def read(documents: tuple[Document, ...], requested: str | None, chosen: GenerationChoice | None = None) -> Reading:
    """The reading of files merged left to right, as prime-rl merges them.

    `requested` is the generation in the command line, `chosen` the choice if it is already made.
    """
    shown = documents[0] if len(documents) == 1 else merge_documents(documents)
    values = shown.values
    theirs = {key: value for key, value in values.items() if key != OWN_TABLE}
    choice = chosen or choose(theirs, shown.path, _named_generation(values), requested)
    generation = load(choice.generation)
    unread = [document.fault for document in documents if document.fault is not None]
    partial = bool(unread) or is_overlay(generation, choice.root, theirs)
    judged = None if unread else choice.judged  # a line that cannot be read may have a key that seems to be missing
    found, refused = judged or judge_values(generation, choice.root, theirs, whole=not partial)
    read_there = frozenset(found.aliased.values())  # keys whose value is read although they have another name
    is_read = [fault.code == OTHER_GENERATION and fault.key in read_there for fault in found.faults]
    run_faults = [
        fault
        for fault, read in zip(found.faults, is_read, strict=True)
        if fault.code not in _HARMLESS and fault.severity is None and not read
    ]
    faulty = frozenset(fault.key for fault in run_faults)
    run, keys = run_of(FieldSource(generation, choice.root, theirs, found.aliased, faulty))
    own = _read_own_table(values)
    if own.python is not None or own.month is not None:
        launch = prime_rl_of(run).launch._replace(python=own.python, month=own.month)
        run = replace_parts(run, launch=launch)
    keys |= own.keys
    fields = _fields(generation, choice.root, keys) if found.faults else {}
    told = [fault if read else _with_field(fault, fields) for fault, read in zip(found.faults, is_read, strict=True)]
    # Not before the RunSpec is made: a value that may be right for a newer prime-rl is still one that nobody can read.
    if choice.is_guess and choice.generation == newest() and choice.known > choice.unknown:
        told = doubt_errors(told, theirs, choice.generation)
    return Reading(
        document=shown,
        dialect=DIALECT,
        generation=choice.generation,
        root=choice.root,
        run=replace(run, prime_train=own.supervision),
        faults=(
            *(Fault(SYNTAX, (), fault.what, fault.fix or _CORRECT) for fault in unread),
            *own.faults,
            *_generation_faults(_named_generation(values), requested, choice),
            *told,
            *refused,
        ),
        keys=keys,
        all_fields=False,
        others=documents if len(documents) > 1 else (),
        because=choice.because,
        partial=partial,
    )


def merge(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Tables are merged, other values are replaced. Source: prime-pydantic-config 0.4.3, _deep_merge."""
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            below = result.get(key)
            both = isinstance(below, dict) and isinstance(value, dict)
            result[key] = merge([below, value]) if both and below is not None else value
    return result


def merge_documents(documents: tuple[Document, ...]) -> Document:
    """A document with the merged values and the names of all files; the text is that of the last one."""
    values = merge([document.values for document in documents])
    path = " + ".join(document.path for document in documents)
    return Document(documents[-1].text, path, values, next((d.fault for d in documents if d.fault is not None), None))


def _fields(generation: SchemaGeneration, root: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Key -> the RunSpec field that it sets. An alias of a key is a key, too."""
    fields = {key: field for field, key in reversed(list(keys.items()))}
    for key, field in list(fields.items()):
        fields.update((alias, field) for alias in _other_names(generation, root, key))
    return fields


def _other_names(generation: SchemaGeneration, root: str, key: str) -> tuple[str, ...]:
    """The aliases of a dotted key, dotted too, without itself."""
    around, _, last = key.rpartition(".")
    item = generation.find(root, tuple(int(part) if part.isdigit() else part for part in key.split(".")))
    front = f"{around}." if around else ""
    return tuple(front + word for word in (item.aliases if item else ()) if word != last)


def _with_field(fault: Fault, fields: Mapping[str, str]) -> Fault:
    meant = (key for key, value in fault.patch.items() if value is not None and key in fields)
    return fault._replace(shadows=fields.get(dotted(fault.key), "") or fields.get(next(meant, ""), ""))


def _generation_faults(named: str | None, requested: str | None, choice: GenerationChoice) -> Iterator[Fault]:
    key = (OWN_TABLE, "prime_rl")
    if named in generations() and requested is not None and requested != named:
        what = f"[prime_train] names prime-rl {named}; --prime-rl {requested} is not used"
        patch = {dotted(key): requested}
        yield Fault(GENERATION, key, what, f'{dotted(key)} = "{requested}"', patch, severity=Severity.WARNING)
    if choice.rivals:
        fitting = ", ".join((choice.generation, *choice.rivals))
        judged = f"it is judged as {choice.generation}: {choice.because}"
        what = f"the keys of this file fit prime-rl {fitting} equally well; {judged}"
        yield Fault(GENERATION, key, what, f"--prime-rl {choice.generation}, or [prime_train] prime_rl in the file")


# --- our own table -------------------------------------------------------------------------------


class _OwnTable(NamedTuple):
    """[prime_train] of a prime-rl file. A value with a fault has its default. `keys`: RunSpec field -> key."""

    supervision: PrimeTrain
    python: str | None
    month: str | None
    keys: dict[str, str]
    faults: list[Fault]


def _read_own_table(values: Mapping[str, Any]) -> _OwnTable:
    """Read with the same walk as [prime_train] of a run.toml, with four keys more."""
    own = values.get(OWN_TABLE)
    names = ["expected_prompt_tokens", "budget_hours", "budget_usd"]
    for name, value in own.items() if isinstance(own, dict) else ():
        below = value if isinstance(value, dict) else ()
        names += [] if name in ("prime_rl", "prime_rl_month", "python") else [name, *(f"{name}.{key}" for key in below)]
    keys = {f"{OWN_TABLE}.{name}": f"{OWN_TABLE}.{name}" for name in names}
    if OWN_TABLE not in values:
        return _OwnTable(PrimeTrain(), None, None, keys, [])
    from prime_train.config import schema, validate
    from prime_train.spec.annotations import Gt

    legal = dict(schema.table_of(PrimeTrain).fields)
    shapes: dict[str, schema.Shape] = {"prime_rl": schema.OneOf(generations()), "python": schema.Text()}
    shapes["prime_rl_month"] = schema.OneOf(months())
    for name, shape in (shapes | {"expected_prompt_tokens": schema.Number(True, (Gt(0),))}).items():
        legal[name] = schema.Field(name, name, shape, "", None)
    table = schema.Field(OWN_TABLE, OWN_TABLE, schema.Table(legal, dict), "", None)
    built, faults = validate.walk(schema.Table({OWN_TABLE: table}, dict), {OWN_TABLE: own}, "")
    given = {key: value for key, value in built.get(OWN_TABLE, {}).items() if key != "prime_rl"}
    python, month = given.pop("python", None), given.pop("prime_rl_month", None)
    return _OwnTable(PrimeTrain(**given), python, month, keys, faults)
