"""Reads a `[[layout]]` table of registry/trainers into the layout that step_folders.py judges by. Opens no file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from prime_train.checkpoints.folder_layout import FolderLayout
from prime_train.checkpoints.proofs import PROOF_KINDS, FileProof, ProofKind
from prime_train.checkpoints.tracker import StepTracker

_KEYS = frozenset(
    {"name", "step", "kind", "proofs", "below", "parts", "tracker", "temporary", "step_key", "alike", "best", "pack"}
)
_KINDS: Mapping[str, ProofKind] = {kind: kind for kind in get_args(ProofKind)}


def read_layout(table: Mapping[str, Any], ranks: int = 0) -> FolderLayout:
    """The layout of a `[[layout]]` table. `ranks`: processes that save, from the launch; 0 where it is not known.

    Raises ValueError, with the key and what is wrong with it.
    """
    if unknown := sorted(table.keys() - _KEYS):
        raise ValueError(f"layout: {unknown[0]} is not one of {', '.join(sorted(_KEYS))}")
    step, kind, step_key = _text(table, "step"), table.get("kind", "folder"), str(table.get("step_key", ""))
    try:
        has_number = re.compile(step).groups >= 1
    except re.error as error:
        raise ValueError(f"layout.step: {error}") from None
    if not has_number and not step_key:
        raise ValueError("layout.step: it has no group for the number, and no step_key says where the number is")
    if kind not in ("folder", "file"):
        raise ValueError(f"layout.kind: {kind!r} is not folder or file")
    proofs = tuple(map(_read_proof, table.get("proofs", ())))
    if not proofs:
        raise ValueError("layout.proofs: without one, nothing shows that a checkpoint is complete")
    packs, packs_source = _read_packing(table)
    return FolderLayout(
        step,
        kind=kind,
        proofs=proofs,
        tracker=_read_tracker(table),
        below=_texts(table, "below") or (".",),
        parts=_texts(table, "parts"),
        temporary=_texts(table, "temporary"),
        ranks=ranks,
        step_key=step_key,
        alike=bool(table.get("alike", False)),
        best=_texts(table, "best"),
        packs=packs,
        packs_source=packs_source,
    )


def _read_packing(table: Mapping[str, Any]) -> tuple[bool, str]:
    """`{ safe = true, source = "where its trainer looks" }`. Without it a checkpoint is not packed."""
    found = table.get("pack")
    if found is None:
        return False, ""
    if found.keys() != {"safe", "source"} or not isinstance(found["safe"], bool):
        raise ValueError(f"layout.pack: {dict(found)} does not have safe = true or false, and source")
    return found["safe"], _text(found, "source")


def _read_proof(table: Mapping[str, Any]) -> FileProof:
    """`{ json = "trainer_state.json", step = "global_step" }`: the kind is the key that names the files."""
    kinds = [kind for kind in PROOF_KINDS if kind in table]
    if len(kinds) != 1 or table.keys() - {kinds[0], "step", "least"}:
        raise ValueError(f"layout.proofs: {dict(table)} is not one of {', '.join(PROOF_KINDS)}, with step and least")
    kind, names = _KINDS[kinds[0]], table[kinds[0]]
    if kind == "tracker":
        return FileProof(kind)
    listed = tuple(names) if isinstance(names, list) and kind == "any" else (names,)
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise ValueError(f"layout.proofs: {kind} = {names!r} is no name of a file")
    if kind == "ranks" and "{rank}" not in listed[0]:
        raise ValueError(f"layout.proofs: ranks = {names!r} does not have {{rank}}")
    least = table.get("least", 1)
    if not isinstance(least, int) or least < 0:
        raise ValueError(f"layout.proofs: least = {least!r} is no count")
    return FileProof(kind, listed, str(table.get("step", "")), least)


def _read_tracker(table: Mapping[str, Any]) -> StepTracker | None:
    found = table.get("tracker")
    if found is None:
        return None
    if "{step}" not in found.get("form", "{step}"):
        raise ValueError("layout.tracker: its form does not have {step}")
    return StepTracker(**found)


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"layout.{key}: {value!r} is no text")
    return value


def _texts(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values: Iterable[Any] = table.get(key, ())
    return tuple(_text({key: value}, key) for value in values)
