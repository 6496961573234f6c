"""Removes a checkpoint folder so that no moment of it looks like a complete checkpoint. Decides nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from prime_train.checkpoints.layout import MANIFEST


def remove(folder: Path) -> None:
    """Delete the folder, its manifest first: killed half-way, it is incomplete. Fine if it is not there."""
    (folder / MANIFEST).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
