"""Reads facts about the file system that a run will be saved on. Deletes every file that it creates."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.facts.child import run_probe, script
from prime_train.facts.facts import DiskSpeed, NotKnown, SaveDir
from prime_train.facts.mounts import mount_of
from prime_train.rundir import RunDir

SPEED_DEADLINE_S = 30.0


def save_dir(run_dir: Path) -> SaveDir:
    """Space and permissions for a run directory at `run_dir`. Tests writing with a temporary file."""
    path = run_dir.absolute()
    existing = _existing(path)
    if not existing.is_dir():
        return SaveDir(path, existing, 0, 0, f"{existing} is not a folder")
    status = os.statvfs(existing)
    held_bytes = sum(checkpoint.size_bytes for checkpoint in layout.scan(RunDir(path).checkpoints))
    free_bytes = status.f_bavail * status.f_frsize
    return SaveDir(path, existing, free_bytes, held_bytes, _write_error(existing), _file_system(existing))


def measure_speed(run_dir: Path, deadline_s: float = SPEED_DEADLINE_S) -> DiskSpeed | NotKnown:
    """The write speed at the place of the run directory."""
    existing = _existing(run_dir.absolute())
    answer = run_probe([sys.executable, script("disk_program"), str(existing)], deadline_s)
    if isinstance(answer, NotKnown):
        return NotKnown(f"a file in {existing}: {answer.reason}")
    if answer.code != 0:
        return NotKnown(f"a file in {existing}: {answer.last_line}")
    return DiskSpeed(json.loads(answer.out)["bytes_per_s"])


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))


def _file_system(folder: Path) -> str:
    """The kernel's name of the file system type, "" if it is not known."""
    try:
        mount = mount_of(folder.resolve())
    except OSError:
        return ""
    return mount.kind if mount is not None else ""


def _write_error(folder: Path) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".prime-train-") as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""
