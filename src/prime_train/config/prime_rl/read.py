"""prime-rl's config files: one text, or several merged, become a RunSpec with every fault. Pure but for the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from prime_train.config.parsed_config import (
    GENERATION,
    OTHER_MEMBER,
    PASSED_THROUGH,
    SAID_TWICE,
    SYNTAX,
    Fault,
    Reading,
)
from prime_train.config.prime_rl.detect_generation import Choice, choose
from prime_train.config.prime_rl.run import Source, run_of
from prime_train.config.prime_rl.schema import Generation, generations, load
from prime_train.config.prime_rl.validate import walk
from prime_train.core.findings import Severity
from prime_train.spec import RunSpec, prime_rl_parts
from prime_train.spec.supervision import PrimeTrain
from prime_train.toml.document import Document

DIALECT = "prime-rl"
OURS = "prime_train"  # the table that is taken out before prime-rl sees the file

_CORRECT = "correct the line; keys that stand in it are unread"
_SAYS_A_RUN = {"sft": ("model", "data"), "trainer": ("model", "data", "optim")}
_HARMLESS = (PASSED_THROUGH, GENERATION, OTHER_MEMBER, SAID_TWICE)


def recognised(values: Mapping[str, Any], path: str, known_otherwise: int = 0) -> Choice | None:
    """The choice for values that are meant as a prime-rl file: it knows at least half of their keys, and more than
    another dialect, which knows so many."""
    theirs = {key: value for key, value in values.items() if key != OURS}
    said = said_generation(values)
    if not theirs:
        return None
    choice = choose(theirs, path, said, None)
    is_theirs = choice.known > known_otherwise and (choice.known >= choice.unknown or not known_otherwise)
    return choice if said is not None or is_theirs else None


def said_generation(values: Mapping[str, Any]) -> str | None:
    """What [prime_train] prime_rl says, legal or not."""
    ours = values.get(OURS)
    said = ours.get("prime_rl") if isinstance(ours, dict) else None
    return said if isinstance(said, str) else None


def read(documents: tuple[Document, ...], asked: str | None, chosen: Choice | None = None) -> Reading:
    """The reading of files merged left to right, as prime-rl merges them. `asked` is a generation or None.

    `chosen` is the choice, where it is made already.
    """
    values = merged([document.values for document in documents])
    theirs = {key: value for key, value in values.items() if key != OURS}
    shown = documents[0] if len(documents) == 1 else _merged_document(documents, values)
    said = said_generation(values)
    choice = chosen or choose(theirs, shown.path, said, asked)
    generation = load(choice.generation)
    is_broken = any(document.fault is not None for document in documents)
    partial = is_broken or is_overlay(generation, choice.root, theirs)
    found = walk(generation, choice.root, theirs, whole=not partial)
    run_faults = [fault for fault in found.faults if fault.code not in _HARMLESS and fault.severity is None]
    faulty = frozenset(fault.key for fault in run_faults)
    run, keys = run_of(Source(generation, choice.root, theirs, found.aliased, faulty, values.get(OURS)))
    run = _with_python(run, values.get(OURS))
    fields = _fields(generation, choice.root, keys) if found.faults else {}
    faults = [
        *(
            Fault(SYNTAX, (), document.fault.what, document.fault.fix or _CORRECT)
            for document in documents
            if document.fault is not None
        ),
        *_of_ours(values, said, asked, choice),
        *(_with_field(fault, fields) for fault in found.faults),
    ]
    others = documents if len(documents) > 1 else ()
    return Reading(
        document=shown,
        dialect=DIALECT,
        generation=choice.generation,
        root=choice.root,
        run=run,
        faults=tuple(faults),
        keys=keys,
        all_fields=False,
        others=others,
        because=choice.because,
        partial=partial,
    )


def _with_python(run: RunSpec, ours: Any) -> RunSpec:
    """The run with the interpreter that [prime_train] python names: its generation has no such key."""
    named = ours.get("python") if isinstance(ours, dict) else None
    if not isinstance(named, str):
        return run
    return replace(run, launch=(run.launch or prime_rl_parts.Launch())._replace(python=named))


def merged(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Tables are merged, everything else is replaced. Source: prime-pydantic-config 0.4.3, _deep_merge."""
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            below = result.get(key)
            both = isinstance(below, dict) and isinstance(value, dict)
            result[key] = merged([below, value]) if both and below is not None else value
    return result


def _merged_document(documents: tuple[Document, ...], values: Mapping[str, Any]) -> Document:
    last = documents[-1]
    path = " + ".join(document.path for document in documents)
    return Document(last.text, path, values, next((d.fault for d in documents if d.fault is not None), None))


def is_overlay(generation: Generation, root: str, values: Mapping[str, Any]) -> bool:
    """Whether a file is plainly made to be merged onto another.

    None of what its root cannot do without is there; or some is not, and the file says nothing but tables: a whole
    run has a plain key at its top (max_steps, seq_len, output_dir). A root that can do without any key is a whole
    run where it says what is trained, or on what.
    """
    required = list(generation.root(root).required(None))
    if not required:
        return root in _SAYS_A_RUN and values.keys().isdisjoint(_SAYS_A_RUN[root])
    missing = [key for key in required if key not in values]
    only_tables = all(isinstance(value, dict) for value in values.values())
    return "toml_files" in values or (bool(missing) and (len(missing) == len(required) or only_tables))


def _fields(generation: Generation, root: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Key -> the RunSpec field that it feeds, by every word that there is for the key."""
    fields = {key: field for field, key in reversed(list(keys.items()))}
    for key, field in list(fields.items()):
        around, _, last = key.rpartition(".")
        row = generation.find(root, tuple(int(part) if part.isdigit() else part for part in key.split(".")))
        front = f"{around}." if around else ""
        fields.update((front + word, field) for word in (row.aliases if row else ()) if word != last)
    return fields


def _with_field(fault: Fault, fields: Mapping[str, str]) -> Fault:
    from prime_train.toml.document import dotted

    meant = (key for key, value in fault.patch.items() if value is not None and key in fields)
    field = fields.get(dotted(fault.key), "") or fields.get(next(meant, ""), "")
    return fault._replace(shadows=field)


# --- our own table -------------------------------------------------------------------------------


def _of_ours(values: Mapping[str, Any], said: str | None, asked: str | None, choice: Choice) -> Iterator[Fault]:
    if OURS in values:
        yield from _table_of_ours(values[OURS])
    if said in generations() and asked is not None and asked != said:
        what = f"the file is of prime-rl {said}, as it says itself; --prime-rl {asked} is not used"
        key = (OURS, "prime_rl")
        yield Fault(
            GENERATION,
            key,
            what,
            f'prime_train.prime_rl = "{asked}"',
            {f"{OURS}.prime_rl": asked},
            severity=Severity.WARNING,
        )
    if choice.rivals:
        fitting = ", ".join((choice.generation, *choice.rivals))
        what = f"the keys of this file fit prime-rl {fitting}; it is judged as {choice.generation}"
        yield Fault(
            GENERATION,
            (OURS, "prime_rl"),
            what,
            f"--prime-rl {choice.generation}, or [prime_train] prime_rl in the file",
        )


def _table_of_ours(ours: Any) -> Iterator[Fault]:
    """The faults of [prime_train], by the same walk as a run.toml's."""
    from prime_train.config import schema
    from prime_train.config.validate import walk as plain_walk

    table = schema.table_of(PrimeTrain)
    legal = dict(table.fields)
    legal["prime_rl"] = schema.Field("prime_rl", "prime_rl", schema.Choice(generations()), "", None)
    prompt_tokens = schema.Number(True, (schema.Bound(">", 0),))
    legal["expected_prompt_tokens"] = schema.Field(
        "expected_prompt_tokens", "expected_prompt_tokens", prompt_tokens, "", None
    )
    legal["python"] = schema.Field("python", "python", schema.Text(), "", None)
    inner = schema.Field(OURS, OURS, schema.Table(legal, dict), "", None)
    _, faults = plain_walk(schema.Table({OURS: inner}, dict), {OURS: ours}, {})
    yield from faults
