"""Looks at the file system a run will be saved on. Leaves nothing there but the time of a look."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.facts.facts import SaveDir
from prime_train.rundir import RunDir


def save_dir(run_dir: Path) -> SaveDir:
    """What a run directory at `run_dir` would meet. A file is created beside it and removed at once, to see."""
    path = run_dir.absolute()
    existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        return SaveDir(path, existing, 0, 0, f"{existing} is not a folder")
    status = os.statvfs(existing)
    held_bytes = sum(checkpoint.size_bytes for checkpoint in layout.scan(RunDir(path).checkpoints))
    return SaveDir(path, existing, status.f_bavail * status.f_frsize, held_bytes, _refusal(existing))


def _refusal(folder: Path) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".prime-train-") as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""
