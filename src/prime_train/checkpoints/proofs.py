"""Judges by content whether a checkpoint of any trainer is complete. Imports no torch and deletes nothing.

Most trainers write no mark after a save, and take the highest number or what a file `latest` names. So each file proves
itself (file_ends.py, dcp.py), and the files together prove that none is missing: an index, a marker with the same step,
one file for each rank. Which proofs a layout has is data: `[[layout]]` in registry/trainers, read by layout_table.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from prime_train.checkpoints import dcp, file_ends
from prime_train.checkpoints.listing import Files
from prime_train.core import outside

ProofKind = Literal[
    "json", "safetensors", "zip", "index", "dcp", "ranks", "marker", "any", "absent", "tracker", "manifest"
]
PROOF_KINDS: tuple[str, ...] = get_args(ProofKind)
_RANK, _WORLD = "{rank}", "{world}"
_UNFINISHED = "the save did not finish"


@dataclass(frozen=True, slots=True)
class FileProof:
    """One thing that must hold.

    `names`: patterns of files below the step folder, in which `*` stands for any text without "/", `{rank}` for the
    number of a rank and `{world}` for the number of ranks. More than one only for "any".
    """

    kind: ProofKind
    names: tuple[str, ...] = ()
    step: str = ""  # for "json" and "manifest": the key, with dots for inner ones, whose value is the step
    least: int = 1  # so many files; 0: only those that are there must be whole


class JudgedFiles(NamedTuple):
    """The files of one checkpoint, or of a part of it, and what is known beside them."""

    folder: Path
    files: Files  # by their name below `folder`
    step: int
    ranks: int = 0  # processes that save; 0: not known
    tracked: int | None = None  # the step that the trainer's `latest` file names


def find_problem(judged: JudgedFiles, proofs: Sequence[FileProof]) -> str:
    """The first proof that does not hold, in words; "" where all do. Raises OSError where a file cannot be read."""
    for proof in proofs:
        if lacks := _find_missing(judged.files.keys(), proof, judged.ranks):
            return lacks
    return next(filter(None, (_CONTENT[proof.kind](judged, proof) for proof in proofs if proof.kind in _CONTENT)), "")


def find_missing_name(names: Collection[str], proofs: Sequence[FileProof], ranks: int = 0) -> str:
    """What a checkpoint with these file names lacks; "" where nothing is missing. Opens no file."""
    return next(filter(None, (_find_missing(names, proof, ranks) for proof in proofs)), "")


def list_proven(names: Collection[str], proofs: Sequence[FileProof], step: int) -> set[str]:
    """The names that a proof is about. The step in the name of a folder is written as `{step}`."""
    found: set[str] = set()
    for proof in proofs:
        if proof.kind == "dcp":
            found |= {f"{folder}{dcp.METADATA}" for folder in _list_dcp_folders(names, proof)}
        elif proof.kind not in ("absent", "tracker"):
            found |= {name for pattern in proof.names for name in _select(names, pattern)}
    return {re.sub(rf"(?<!\d){step}(?=/)", "{step}", name) for name in found}


def show_name(name: str) -> str:
    """A name for a message: without line ends or control characters, and not endless."""
    return (name if name.isprintable() else ascii(name))[:120]


# --- by names --------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _compile(pattern: str) -> re.Pattern[str]:
    parts = {"*": "[^/]*", _RANK: r"(?P<rank>\d+)", _WORLD: r"(?P<world>\d+)"}
    pieces = re.split(r"(\*|\{rank\}|\{world\})", pattern)
    return re.compile("".join(parts.get(piece) or re.escape(piece) for piece in pieces), re.ASCII | re.DOTALL)


def _select(names: Collection[str], pattern: str) -> list[str]:
    if not ({"*", "{"} & set(pattern)):
        return [pattern] if pattern in names else []
    return sorted(filter(_compile(pattern).fullmatch, names))


def _find_missing(names: Collection[str], proof: FileProof, ranks: int) -> str:
    if proof.kind == "tracker":
        return ""
    found = [name for pattern in proof.names for name in _select(names, pattern)]
    wanted = " or ".join(proof.names)
    if proof.kind == "absent":
        return f"{show_name(found[0])} is there: {_UNFINISHED}" if found else ""
    if proof.kind == "ranks":
        return _find_missing_rank(names, proof, ranks)
    if proof.kind == "dcp":
        folders = _list_dcp_folders(names, proof)
        without = [folder for folder in folders if f"{folder}{dcp.METADATA}" not in names]
        if len(folders) < proof.least or without:
            return f"no {without[0] if without else _as_prefix(proof.names[0])}{dcp.METADATA}: {_UNFINISHED}"
        return ""
    if len(found) >= proof.least:
        return ""
    return f"no {wanted}: {_UNFINISHED}" if not found else f"{len(found)} of {proof.least} files {wanted}"


def _find_missing_rank(names: Collection[str], proof: FileProof, ranks: int) -> str:
    """One file for each rank: ranks are those of the names, of the number in the names, and of the launch."""
    pattern = proof.names[0]
    matches = [match for name in names if (match := _compile(pattern).fullmatch(name)) is not None]
    if not matches:
        return f"no {pattern}: {_UNFINISHED}" if proof.least else ""
    # A file of an earlier start with another number of ranks may lie beside it, so one whole set is enough.
    worlds: dict[int, set[int]] = {}
    for match in matches:
        world = int(match["world"]) if _WORLD in pattern else 0
        worlds.setdefault(world, set()).add(int(match["rank"]))
    for world, found in worlds.items():
        # A file is written for each process, also where several of them have the same number in their group.
        is_whole = len(found) == world if world else len(matches) >= ranks and max(found) == len(found) - 1
        if is_whole and max(found) == len(found) - 1:
            return ""
    world, found = max(worlds.items())
    wanted = world or max(ranks, max(found) + 1)
    missing = next((rank for rank in range(wanted) if rank not in found), None)
    if missing is None:
        return f"{len(matches)} files {pattern} of {wanted} processes"
    name = pattern.replace(_RANK, str(missing)).replace(_WORLD, str(world))
    return f"no {name}, of {wanted} ranks: {_UNFINISHED}"


def _as_prefix(folder: str) -> str:
    return "" if folder == "." else f"{folder}/"


def _list_dcp_folders(names: Collection[str], proof: FileProof) -> list[str]:
    """The folders that torch.distributed.checkpoint wrote into, as prefixes of names."""
    inside = _as_prefix(proof.names[0])
    found = _select(names, f"{inside}{dcp.METADATA}") + _select(names, f"{inside}*.distcp")
    return sorted({f"{name.rpartition('/')[0]}/".removeprefix("/") for name in found})


# --- by content ------------------------------------------------------------------------------------


def _judge_ends(judged: JudgedFiles, proof: FileProof) -> str:
    """Safetensors, zip and JSON: each file that is there has its end."""
    for name in _select(judged.files.keys(), proof.names[0]):
        path, ending = judged.folder / name, proof.kind
        assert ending in ("safetensors", "zip", "json")
        version = file_ends.version_of(_stat(judged, name))
        if fault := file_ends.find_fault(path, ending, version):
            return f"{show_name(name)} is not whole: {fault}"
        if proof.step and (differs := _find_other_step(path, version, proof.step, judged.step)):
            return f"{show_name(name)} {differs}"
    return ""


def _stat(judged: JudgedFiles, name: str) -> Any:
    """The status of a file. Raises OutsideError for a link, a pipe and a device."""
    return outside.stat_regular(judged.folder / name, judged.folder)


@lru_cache(maxsize=2**12)
def _find_other_step(path: Path, version: file_ends.FileVersion, key: str, step: int) -> str:
    """A folder that was copied to another name would resume at a wrong step."""
    del version  # a key of the cache
    value = file_ends.read_json(path)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value == step and not isinstance(value, bool):
        return ""
    return f"has no {key}" if value is None else f"was written for {key} = {show_name(str(value))}"


def _judge_index(judged: JudgedFiles, proof: FileProof) -> str:
    for name in _select(judged.files.keys(), proof.names[0]):
        named = _list_indexed(judged.folder / name, file_ends.version_of(_stat(judged, name)))
        if named is None:
            return f"{show_name(name)} is not whole: it has no weight_map with the names of files"
        beside = name.rpartition("/")[0]
        for file in named:
            if f"{beside}/{file}".removeprefix("/") not in judged.files:
                return f"{show_name(file)} is missing, which {show_name(name)} names"
    return ""


@lru_cache(maxsize=2**10)
def _list_indexed(path: Path, version: file_ends.FileVersion) -> tuple[str, ...] | None:
    """The files that an index names; None for what is no index. Raises OSError."""
    del version  # a key of the cache
    try:
        index = file_ends.read_json(path)
    except ValueError:
        return None
    named = index.get("weight_map") if isinstance(index, Mapping) else None
    if not isinstance(named, Mapping) or not all(isinstance(file, str) for file in named.values()):
        return None
    return tuple(sorted(set(named.values())))


def _judge_manifest(judged: JudgedFiles, proof: FileProof) -> str:
    """Each file that a manifest names has its size: `{"files": {NAME: {"bytes": N}}}`."""
    for name in _select(judged.files.keys(), proof.names[0]):
        version = file_ends.version_of(_stat(judged, name))
        sizes = _list_sizes(judged.folder / name, version)
        if sizes is None:
            return f"{show_name(name)} is not whole: it does not name files with their bytes"
        if proof.step and (differs := _find_other_step(judged.folder / name, version, proof.step, judged.step)):
            return f"{show_name(name)} {differs}"
        for file, size_bytes in sizes:
            if file not in judged.files:
                return f"{show_name(file)} is missing"
            if (has_bytes := _stat(judged, file).st_size) != size_bytes:
                return f"{show_name(file)} has {has_bytes:,} of {size_bytes:,} bytes"
    return ""


@lru_cache(maxsize=2**10)
def _list_sizes(path: Path, version: file_ends.FileVersion) -> tuple[tuple[str, int], ...] | None:
    """The files that a manifest names, and their sizes; None for what is no manifest. Raises OSError."""
    del version  # a key of the cache
    try:
        sizes = {name: outside.to_count(one["bytes"]) for name, one in file_ends.read_json(path)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    known = {name: size_bytes for name, size_bytes in sizes.items() if size_bytes is not None}
    return tuple(sorted(known.items())) if known and len(known) == len(sizes) else None


def _judge_dcp(judged: JudgedFiles, proof: FileProof) -> str:
    for prefix in _list_dcp_folders(judged.files.keys(), proof):
        if lacks := dcp.missing(judged.folder / prefix if prefix else judged.folder):
            return f"{prefix}{lacks}"
    return ""


def _judge_regular(judged: JudgedFiles, proof: FileProof) -> str:
    """A marker, and files of ranks: they must be plain files, and may be empty."""
    for pattern in proof.names:
        for name in _select(judged.files.keys(), pattern):
            _stat(judged, name)
    return ""


def _judge_tracker(judged: JudgedFiles, proof: FileProof) -> str:
    del proof
    # It is written after all ranks have saved, so a later number proves this one too.
    if judged.tracked is not None and judged.tracked >= judged.step:
        return ""
    return f"the trainer's own record of its latest checkpoint does not name it: {_UNFINISHED}"


_CONTENT: Mapping[str, Callable[[JudgedFiles, FileProof], str]] = {
    **dict.fromkeys(("json", "safetensors", "zip"), _judge_ends),
    **dict.fromkeys(("marker", "ranks", "any"), _judge_regular),
    "index": _judge_index,
    "dcp": _judge_dcp,
    "tracker": _judge_tracker,
    "manifest": _judge_manifest,
}
