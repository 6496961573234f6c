"""Finds the checkpoints of other trainers that may be packed, and those that are. Changes nothing.

In its place a packed checkpoint would still look like one to its trainer. So it is moved out of sight first: into
`packed-0/step_N/` below the folder of the checkpoints, under its own names, with a manifest of every file beside it.

Which layouts allow that is data (`pack` of a `[[layout]]`), because some trainers delete or trip over any folder there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.checkpoints import in_use, layout, listing
from prime_train.checkpoints.folder_layout import NO_STEP, list_bounded, measure, steps
from prime_train.checkpoints.layout import PIN, SavedCheckpoint
from prime_train.checkpoints.needed import find_needed
from prime_train.checkpoints.packing.packed import ManifestEntry, Read
from prime_train.checkpoints.step_folders import StepPlaces, problem
from prime_train.core import outside

FOLDER = "packed-0"  # a name that no trainer takes for a step, as that for broken ones (aside.py)
_LEAST_WHOLE = 2  # so many of the newest complete checkpoints stay as they are


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A complete checkpoint of another trainer. `obstacle`: why it must stay as it is; empty where it may be packed."""

    step: int
    parts: tuple[Path, ...]
    obstacle: str = ""


def find_steps(places: StepPlaces) -> list[FoundStep]:
    """Every complete checkpoint that is not packed, newest first. Raises OSError."""
    saved = steps(places.checkpoints, places.layout)
    needed = find_needed(places.checkpoints, places.layout, saved)
    found: list[FoundStep] = []
    for step in sorted(saved, reverse=True):
        parts = tuple(saved[step])
        if problem(parts, places.layout):
            continue
        why = f"the newest {_LEAST_WHOLE} complete ones stay" if len(found) < _LEAST_WHOLE else needed.get(step, "")
        found.append(FoundStep(step, parts, why or _find_obstacle(step, parts, places)))
    return found


def _find_obstacle(step: int, parts: Sequence[Path], places: StepPlaces) -> str:
    root = places.checkpoints[0]
    if step == NO_STEP:
        return "its name has no step"
    if taken := find_taken(places, step):
        return taken
    if any((part / PIN).exists() for part in parts):
        return "it is pinned"
    if user := next(filter(None, map(in_use.marked_by, parts)), ""):
        return f"{user} uses it"
    if opened := in_use.opened_by(parts):
        return f"{opened} and reads or writes it"
    for path, status in list_status(parts):
        # A link or a second name leads to bytes that another checkpoint may share, which must not be cut.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return f"{path.name} is no regular file with one name"
        if os.geteuid() not in (0, status.st_uid) or not os.access(path, os.W_OK):
            return f"{path.name} may not be written by this user"
        if fault := outside.name_fault(str(path.relative_to(root))):
            return f"a manifest cannot have the name of a file: {fault}"
    return ""


def list_status(parts: Sequence[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file of a checkpoint, sorted by name."""
    for part in parts:
        if part.is_dir():
            for name, status in sorted(list_bounded(part).items()):
                yield part / name, status
        else:
            yield part, part.lstat()


def list_files(places: StepPlaces, found: FoundStep) -> list[ManifestEntry]:
    """The files of a checkpoint by their names below the folder of the checkpoints, without hashes."""
    root = places.checkpoints[0]
    listed = ((str(path.relative_to(root)), status.st_size) for path, status in list_status(found.parts))
    return [ManifestEntry(name, size, "", size) for name, size in listed]


def locate(places: StepPlaces, step: int) -> Path:
    """Where a packed checkpoint is."""
    return places.checkpoints[0] / FOLDER / f"step_{step}"


def find_taken(places: StepPlaces, step: int) -> str:
    """Why no checkpoint of `step` can be packed: its trainer has saved the step again. Empty where nothing is there."""
    folder = locate(places, step)
    return f"{FOLDER}/{folder.name} exists: another one of this step is packed" if os.path.lexists(folder) else ""


def is_packed_away(path: Path) -> bool:
    return path.parent.name == FOLDER


def list_packed(
    places: StepPlaces, step: int | None = None, *, hashes: bool = False, on_read: Read = lambda _: None
) -> list[SavedCheckpoint]:
    """Every checkpoint that was moved to be packed, or that of `step`, newest first."""
    folders = listing.list_newest_first(places.checkpoints[0] / FOLDER) if places.layout.proofs else ()
    chosen = [Path(one.folder) for one in folders if step in (None, one.step)]
    return [layout.inspect(path, hashes=hashes, on_read=on_read, any_files=True) for path in chosen]


def find_newer(places: StepPlaces, step: int, unreadable: Collection[int] = ()) -> int:
    """The step of the newest complete packed checkpoint after `step`, but of those that no trainer could load; or 0."""
    complete = (one.step for one in list_packed(places) if one.complete and one.step not in unreadable)
    return next((packed for packed in complete if packed > step), 0)


def measure_packed(places: StepPlaces) -> int:
    """Bytes on the disk of everything that was moved to be packed."""
    return measure(places.checkpoints[0] / FOLDER).size_bytes if places.layout.packs else 0
