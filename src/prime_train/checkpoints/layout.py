"""Says which checkpoints of a run are complete. Reads sizes and, when asked, hashes; never deletes.

A checkpoint is a folder `step_N` whose manifest `COMPLETE.json` is written last and names every file
with its size and SHA-256. Without the manifest, or with a file that differs from it, the folder is
not a checkpoint that a run may resume from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prime_train.rundir import write_atomic

MANIFEST = "COMPLETE.json"
_STEP = re.compile(r"step_(\d+)\Z")
_CHUNK_BYTES = 8 * 2**20

Read = Callable[[int], None]  # told how many bytes were read, while a large file is


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One `step_N` folder. `problem` is empty when it is complete, else says what is wrong with it."""

    step: int
    path: Path
    size_bytes: int
    problem: str

    @property
    def complete(self) -> bool:
        return not self.problem


def write_manifest(folder: Path, step: int) -> int:
    """Make every file of `folder` durable, then write the manifest that completes it; bytes in total.

    The caller has finished writing: a file changed after this makes the checkpoint incomplete.
    """
    files: dict[str, dict[str, int | str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": digest}
    write_atomic(folder / MANIFEST, json.dumps({"version": 1, "step": step, "files": files}, indent=1))
    return sum(int(entry["bytes"]) for entry in files.values())


def inspect(folder: Path, *, hashes: bool = False, on_read: Read = lambda _: None) -> Checkpoint:
    """The state of one checkpoint folder: sizes always; contents too with `hashes` (reads every byte).

    A folder that is deleted meanwhile is an incomplete checkpoint, not an error.
    """
    match = _STEP.search(folder.name)
    step = int(match.group(1)) if match else -1
    problem = _problem(folder, step, on_read if hashes else None)
    return Checkpoint(step, folder, _size_bytes(folder), problem)


def _size_bytes(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):  # unlike rglob it passes over what vanishes under it
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(directory, name).lstat().st_size
    return total


def _problem(folder: Path, step: int, on_read: Read | None) -> str:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, int | str]] = manifest["files"]
        written_for = int(manifest["step"])
    except FileNotFoundError:
        return f"no {MANIFEST}: the save did not finish"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} is unreadable: {error}"
    if written_for != step:
        return f"{MANIFEST} was written for step {written_for}"
    for name, entry in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size} of {entry['bytes']} bytes"
            if on_read is not None and _sha256(path, on_read) != entry["sha256"]:
                return f"{name} does not match its SHA-256"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} is unreadable: {error.strerror}"
    return ""


def _sha256(path: Path, on_read: Read) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            on_read(len(chunk))
    return digest.hexdigest()


def scan(root: Path, *, hashes: bool = False) -> list[Checkpoint]:
    """Every checkpoint folder under `root`, newest first; empty where there is none."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if path.is_dir() and _STEP.fullmatch(path.name)]
    return sorted((inspect(path, hashes=hashes) for path in folders), key=lambda c: c.step, reverse=True)


def newest_complete(root: Path) -> Checkpoint | None:
    """The checkpoint a run resumes from."""
    return next((checkpoint for checkpoint in scan(root) if checkpoint.complete), None)
