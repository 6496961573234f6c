"""Looks at the file system a run will be saved on. Leaves nothing there but the time of a look."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.facts import mounts
from prime_train.facts.child import run_probe, script
from prime_train.facts.facts import DiskSpeed, NotKnown, SaveDir
from prime_train.rundir import RunDir

SPEED_DEADLINE_S = 30.0


def save_dir(run_dir: Path) -> SaveDir:
    """What a run directory at `run_dir` would meet. A file is created beside it and removed at once, to see."""
    path = run_dir.absolute()
    existing = _existing(path)
    if not existing.is_dir():
        return SaveDir(path, existing, 0, 0, f"{existing} is not a folder")
    status = os.statvfs(existing)
    held_bytes = sum(checkpoint.size_bytes for checkpoint in layout.scan(RunDir(path).checkpoints))
    free_bytes = status.f_bavail * status.f_frsize
    return SaveDir(path, existing, free_bytes, held_bytes, _refusal(existing), _file_system(existing))


def speed(run_dir: Path, deadline_s: float = SPEED_DEADLINE_S) -> DiskSpeed | NotKnown:
    """How fast a file is written where the run directory will be."""
    existing = _existing(run_dir.absolute())
    answer = run_probe([sys.executable, script("disk_program"), str(existing)], deadline_s)
    if isinstance(answer, NotKnown):
        return NotKnown(f"a file in {existing}: {answer.reason}")
    if answer.code != 0:
        return NotKnown(f"a file in {existing}: {answer.last_line}")
    return DiskSpeed(json.loads(answer.out)["bytes_per_s"])


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that is there."""
    return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))


def _file_system(folder: Path) -> str:
    """Its type as the kernel names it, "" where it does not say."""
    try:
        mount = mounts.mount_of(folder.resolve())
    except OSError:
        return ""
    return mount.kind if mount is not None else ""


def _refusal(folder: Path) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".prime-train-") as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""
