"""Checks which checkpoints of a run are complete. Reads sizes and, on request, hashes; never deletes.

A checkpoint is a folder `step_N`. Its manifest `COMPLETE.json` is written last and names every file with its size and
SHA-256. Without the manifest, or with a file that differs from it, a run cannot resume from the folder. A manifest can
also mark the checkpoint as damaged, which makes it incomplete forever, and state that a file is stored packed
(packed.py). Manifests are copied and downloaded: one that names anything but plain names below its folder is broken.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_train.checkpoints.packed import Entry, Read, find_changed_content, find_size_difference, parse_entry
from prime_train.core import outside
from prime_train.core.outside import RECORD_BYTES
from prime_train.core.rundir import sync, write_atomic

MANIFEST = "COMPLETE.json"
LINK = "it is a symbolic link, which prime-train never follows"
PIN = "PINNED"  # a file of this name protects a checkpoint from prime-train's deletions
_STEP = re.compile(r"step_(\d+)\Z")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One `step_N` folder. `problem` describes what is wrong with it; empty when it is complete."""

    step: int
    path: Path
    size_bytes: int
    problem: str
    pinned: bool = False

    @property
    def complete(self) -> bool:
        return not self.problem


def write_manifest(folder: Path, step: int) -> int:
    """Sync every file of `folder` to the disk, then write the manifest; returns the bytes in total.

    A file that is changed after this makes the checkpoint incomplete.
    """
    files: dict[str, dict[str, int | str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (MANIFEST, PIN)):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": digest}
    for directory, _, _ in os.walk(folder, topdown=False):
        sync(Path(directory))
    sync(folder.parent)  # retention deletes older checkpoints next, so this one must not lose its name
    write_atomic(
        folder / MANIFEST, json.dumps({"version": 1, "step": step, "files": files}, indent=1), is_private=False
    )
    return sum(int(entry["bytes"]) for entry in files.values())


def mark_damaged(folder: Path, problem: str) -> None:
    """Mark a checkpoint as damaged in its manifest, so that no later start resumes from it. Not behind a link."""
    if folder.is_symlink():
        raise ValueError(LINK)
    write_atomic(folder / MANIFEST, json.dumps(_manifest(folder) | {"damaged": problem}, indent=1), is_private=False)


def inspect(folder: Path, *, hashes: bool = False, on_read: Read = lambda _: None) -> Checkpoint:
    """The state of one checkpoint folder, by file sizes, and with `hashes` also by contents (reads every byte).

    A folder that is deleted meanwhile is an incomplete checkpoint, not an error.
    """
    found = problem(folder, on_read=on_read if hashes else None)
    return Checkpoint(_step(folder), folder, size_bytes(folder), found, (folder / PIN).exists())


def problem(folder: Path, *, on_read: Read | None = None, part: int = 0, parts: int = 1) -> str:
    """What is wrong with a checkpoint folder; empty when it is complete. With `on_read`, hashes are compared.

    Processes that share the work check every `parts`-th file each, from number `part`. A checkpoint whose manifest
    changes meanwhile, because it is packed or restored, is checked again.
    """
    while True:
        before = _text(folder)
        found = _problem(folder, on_read, part, parts)
        if not found or _text(folder) == before:
            return found


def _text(folder: Path) -> bytes | None:
    """The content of the manifest; None where it cannot be read."""
    try:
        return outside.read_bytes(folder / MANIFEST, RECORD_BYTES, folder)
    except OSError:
        return None


def _problem(folder: Path, on_read: Read | None, part: int, parts: int) -> str:
    if folder.is_symlink():
        return LINK
    try:
        manifest = _manifest(folder)
        written_for = int(manifest["step"])
        damaged = str(manifest.get("damaged", ""))
        found = _entries(manifest)
    except FileNotFoundError:
        return f"no {MANIFEST}: the save did not finish"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} is unreadable: {error}"
    if damaged:
        return f"found damaged: {damaged}"
    if written_for != _step(folder):
        return f"{MANIFEST} was written for step {written_for}"
    for entry in found[part::parts]:
        if differs := find_size_difference(folder, entry):
            return differs
        if on_read is not None and (differs := find_changed_content(folder, entry, on_read)):
            return differs
    return ""


def entries(folder: Path) -> list[Entry]:
    """The entry of each file in the manifest of a complete checkpoint, sorted by name."""
    return _entries(_manifest(folder))


def update_entry(folder: Path, entry: Entry) -> None:
    """Replace the manifest's entry of one file; it is on the disk when this returns."""
    manifest = _manifest(folder)
    manifest["files"][entry.name] = entry.as_json()
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1), is_private=False)


def _manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = outside.read_json(folder / MANIFEST, RECORD_BYTES, within=folder)
    return manifest


def _entries(manifest: dict[str, Any]) -> list[Entry]:
    return [parse_entry(name, raw) for name, raw in sorted(manifest["files"].items())]


def _step(folder: Path) -> int:
    match = _STEP.search(folder.name)
    return int(match.group(1)) if match else -1


def size_bytes(folder: Path) -> int:
    total = 0
    if folder.is_symlink():
        return total  # os.walk would follow it
    for directory, _, names in os.walk(folder):  # unlike rglob, os.walk skips folders that vanish
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(directory, name).lstat().st_size
    return total


def _newest_first(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if path.is_dir() and _STEP.fullmatch(path.name)), key=_step)[::-1]


def scan(root: Path, *, hashes: bool = False) -> list[Checkpoint]:
    """Every checkpoint folder under `root`, newest first."""
    return [inspect(path, hashes=hashes) for path in _newest_first(root)]


def newest_complete(root: Path) -> Checkpoint | None:
    """The checkpoint that a run resumes from. Older checkpoints are not inspected."""
    return next((checkpoint for checkpoint in map(inspect, _newest_first(root)) if checkpoint.complete), None)
