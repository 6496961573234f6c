"""Says which checkpoints of a run are complete. Reads sizes and, when asked, hashes; never deletes.

A checkpoint is a folder `step_N` whose manifest `COMPLETE.json` is written last and names every file
with its size and SHA-256. Without the manifest, or with a file that differs from it, the folder is
not a checkpoint that a run may resume from. A manifest can also say that the folder was found damaged
later: such a checkpoint is never complete again; and that a file is stored packed (packed.py).
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

from prime_train.checkpoints.packed import Entry, Read, changed, difference, entry_of
from prime_train.rundir import write_atomic

MANIFEST = "COMPLETE.json"
PIN = "PINNED"  # a file of this name in its folder keeps a checkpoint from every deletion of ours
_STEP = re.compile(r"step_(\d+)\Z")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One `step_N` folder. `problem` is empty when it is complete, else says what is wrong with it."""

    step: int
    path: Path
    size_bytes: int
    problem: str
    pinned: bool = False

    @property
    def complete(self) -> bool:
        return not self.problem


def write_manifest(folder: Path, step: int) -> int:
    """Make every file of `folder` durable, then write the manifest that completes it; bytes in total.

    The caller has finished writing: a file changed after this makes the checkpoint incomplete.
    """
    files: dict[str, dict[str, int | str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (MANIFEST, PIN)):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": digest}
    write_atomic(folder / MANIFEST, json.dumps({"version": 1, "step": step, "files": files}, indent=1))
    return sum(int(entry["bytes"]) for entry in files.values())


def condemn(folder: Path, problem: str) -> None:
    """Say in the manifest that the contents turned out damaged, so that no later start takes this checkpoint."""
    write_atomic(folder / MANIFEST, json.dumps(_manifest(folder) | {"damaged": problem}, indent=1))


def inspect(folder: Path, *, hashes: bool = False, on_read: Read = lambda _: None) -> Checkpoint:
    """The state of one checkpoint folder: sizes always; contents too with `hashes` (reads every byte).

    A folder that is deleted meanwhile is an incomplete checkpoint, not an error.
    """
    found = problem(folder, on_read=on_read if hashes else None)
    return Checkpoint(_step(folder), folder, size_bytes(folder), found, (folder / PIN).exists())


def problem(folder: Path, *, on_read: Read | None = None, part: int = 0, parts: int = 1) -> str:
    """What is wrong with a checkpoint folder; empty when it is complete. With `on_read` hashes are compared.

    With `parts`, only every so many-th file is looked at, from number `part`: processes that share the
    work each take another part. A checkpoint that is packed or restored meanwhile is looked at again.
    """
    while True:
        before = _text(folder)
        found = _problem(folder, on_read, part, parts)
        if not found or _text(folder) == before:
            return found


def _text(folder: Path) -> bytes | None:
    """The manifest as it stands; None where it cannot be read."""
    try:
        return (folder / MANIFEST).read_bytes()
    except OSError:
        return None


def _problem(folder: Path, on_read: Read | None, part: int, parts: int) -> str:
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
        if differs := difference(folder, entry):
            return differs
        if on_read is not None and (differs := changed(folder, entry, on_read)):
            return differs
    return ""


def entries(folder: Path) -> list[Entry]:
    """What the manifest of a complete checkpoint says of each file, by name."""
    return _entries(_manifest(folder))


def restate(folder: Path, entry: Entry) -> None:
    """Say in the manifest how a file is stored from here on; durable when this returns."""
    manifest = _manifest(folder)
    manifest["files"][entry.name] = entry.as_json()
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1))


def _manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def _entries(manifest: dict[str, Any]) -> list[Entry]:
    return [entry_of(name, raw) for name, raw in sorted(manifest["files"].items())]


def _step(folder: Path) -> int:
    match = _STEP.search(folder.name)
    return int(match.group(1)) if match else -1


def size_bytes(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):  # unlike rglob it passes over what vanishes under it
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(directory, name).lstat().st_size
    return total


def _newest_first(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if path.is_dir() and _STEP.fullmatch(path.name)), key=_step)[::-1]


def scan(root: Path, *, hashes: bool = False) -> list[Checkpoint]:
    """Every checkpoint folder under `root`, newest first; empty where there is none."""
    return [inspect(path, hashes=hashes) for path in _newest_first(root)]


def newest_complete(root: Path) -> Checkpoint | None:
    """The checkpoint a run resumes from. Looks no further than the first complete one."""
    return next((checkpoint for checkpoint in map(inspect, _newest_first(root)) if checkpoint.complete), None)
