"""Deletes checkpoints of a run: superseded ones, and what killed saves and deletions left. Imports no torch.

The run is locked, so no other process writes. A link is never followed. What cannot be deleted is reported and costs
nothing but its space, so the training continues.
"""

from __future__ import annotations

import os
from pathlib import Path

from prime_train.checkpoints import in_use, layout, listing, removal
from prime_train.checkpoints.cleanup import find_superseded
from prime_train.core.rundir import set_stranger_aside, sync
from prime_train.events import CheckpointDeleted, SpaceFreed
from prime_train.trainer.attempt import Attempt


def make_room(attempt: Attempt, folder: Path) -> None:
    """Remove what a killed attempt left at this step, or rename what is the user's. OSError where something remains."""
    if not folder.parent.exists():
        folder.parent.mkdir(parents=True)
        sync(folder.parents[1])  # otherwise a power cut may take all checkpoints with their folder
    if stranger := removal.describe_stranger(folder):
        kept = set_stranger_aside(folder)
        attempt.emit(_not_deleted(attempt, folder, f"{stranger}: it is kept as {kept.name}"))
        return
    try:
        removal.remove(folder)
    except OSError as error:
        if os.path.lexists(folder) or not folder.parent.is_dir():
            raise
        attempt.emit(_not_deleted(attempt, folder, str(error)))


def delete_superseded(attempt: Attempt, step: int, undeletable: set[int]) -> None:
    """Retention over the checkpoints up to `step`. One that cannot be deleted is reported once: `undeletable`."""
    config = attempt.run.checkpoint
    known = [found for found in layout.scan(attempt.run_dir.checkpoints) if found.step <= step]
    for gone in find_superseded(known, config.keep_last, config.keep_every_steps):
        if gone.step in undeletable or in_use.marked_by(gone.path):
            continue  # a process copies or packs it: it is deleted after a later save
        try:
            removal.remove(gone.path)
        except OSError as error:
            # Remembered, because the same event after each save would hide the others.
            undeletable.add(gone.step)
            attempt.emit(_not_deleted(attempt, gone.path, str(error), gone.size_bytes))
            continue
        attempt.emit(CheckpointDeleted(attempt.number, gone.step, f"beyond keep_last = {config.keep_last}"))


def clear_unfinished(attempt: Attempt) -> None:
    """Delete what killed saves and deletions left, before the first step. Links are reported."""
    if not attempt.leads:
        return
    root = attempt.run_dir.checkpoints
    for link in removal.list_links(root):
        attempt.emit(_not_deleted(attempt, link, listing.LINK))
    for found in layout.scan(root):
        # The manifest is written last, so a folder that has one was not left by a killed save.
        if found.path.is_symlink() or (found.path / layout.MANIFEST).exists():
            continue
        try:
            removal.remove(found.path)
        except OSError as error:
            attempt.emit(_not_deleted(attempt, found.path, str(error), found.size_bytes))
        else:
            attempt.emit(CheckpointDeleted(attempt.number, found.step, found.problem))
    for left in removal.list_set_aside(root):
        # A folder whose deletion was not decided gets its name back instead.
        if removal.is_decided(left):
            try:
                removal.finish(left)
            except OSError as error:
                attempt.emit(_not_deleted(attempt, left, str(error), listing.size_bytes(left)))


def _not_deleted(attempt: Attempt, path: Path, problem: str, size_bytes: int = 0) -> SpaceFreed:
    """The event of a deletion that failed."""
    return SpaceFreed(attempt.number, str(path), size_bytes, "superseded or unfinished", problem)
