"""Pins a checkpoint: a file in its folder, which every deletion of prime-train respects. Deletes nothing else."""

from __future__ import annotations

import os

from prime_train.checkpoints.layout import PIN, SavedCheckpoint
from prime_train.core.errors import ExitCode, UserError


def pin(found: SavedCheckpoint, run: str) -> str:
    """Puts the mark beside the files of a complete checkpoint. Returns what was done. Raises UserError."""
    step = found.step
    if not found.complete:
        what, why = f"step {step:,} cannot be pinned: {found.problem}", "only a complete checkpoint is worth keeping"
        raise UserError(what, found.folder, why, f"prime-train ckpt list {run}")
    if found.pinned:
        return f"step {step:,} is pinned already"
    try:
        # A link with this name would make a file elsewhere.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(found.path / PIN, flags, 0o644))
    except OSError as error:
        raise _fault(f"step {step:,} cannot be pinned", found.folder, error) from error
    return f"step {step:,} is pinned: no deletion takes it"


def unpin(found: SavedCheckpoint, _run: str) -> str:
    """Takes the mark away. Returns what was done. Raises UserError."""
    step = found.step
    if not found.pinned:
        return f"step {step:,} is not pinned"
    try:
        (found.path / PIN).unlink()
    except OSError as error:
        raise _fault(f"the pin of step {step:,} cannot be removed", found.folder, error) from error
    return f"step {step:,} is no longer pinned"


def _fault(what: str, folder: str, error: OSError) -> UserError:
    why, fix = error.strerror or str(error), f"do it as the owner of the folder; the mark is its file {PIN}"
    return UserError(what, folder, why, fix, ExitCode.OUT_OF_REACH)
