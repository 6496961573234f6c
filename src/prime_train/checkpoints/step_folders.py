"""Lists the step folders of a program and judges which checkpoints are complete. Deletes nothing.

This is the only judge: the supervisor, the disk watch, `validate`, `status`, `ckpt` and the report all use it. A
program describes its layout as a `Layout`, a plain value, so that a child process gets it as JSON.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.checkpoints import dcp, layout
from prime_train.checkpoints.layout import PIN, Checkpoint, size_bytes


class Marker(NamedTuple):
    """A file that shows that a part of a save has finished."""

    names: tuple[str, ...]  # below a step folder; one of them must exist and not be empty
    lacks: str  # what is wrong where none of them does


@dataclass(frozen=True, slots=True)
class Layout:
    """How a program names its step folders, and what makes a checkpoint complete."""

    step: str = r"step_(\d+)"  # matches the whole name; the group is the number
    markers: tuple[Marker, ...] = ()
    metadata: tuple[str, ...] = ()  # where torch.distributed.checkpoint writes `.metadata`, which names every file
    manifest: bool = False  # the folder has the manifest of the bundled trainer (layout.py)


BUNDLED = Layout(manifest=True)


def layout_from(document: Mapping[str, Any]) -> Layout:
    """The layout whose fields `dataclasses.asdict` gives."""
    markers = tuple(Marker(tuple(names), lacks) for names, lacks in document["markers"])
    return Layout(document["step"], markers, tuple(document["metadata"]), document["manifest"])


def step_of(folder: Path, form: Layout) -> int | None:
    """The number in the name of a step folder; None where the name is another."""
    match = re.fullmatch(form.step, folder.name)
    return int(match[1]) if match else None


def steps(folders: Sequence[Path], form: Layout) -> dict[int, list[Path]]:
    """The step folders below `folders` by their number, in the order of `folders`. A missing folder has none."""
    found: dict[int, list[Path]] = {}
    for folder in folders:
        try:
            names = sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        for path in names:
            step = step_of(path, form)
            if step is not None and path.is_dir() and not path.is_symlink():
                found.setdefault(step, []).append(path)
    return found


def problem(folders: Sequence[Path], form: Layout) -> str:
    """What the checkpoint of one step lacks, whose parts are in `folders`; "" where it is complete."""
    if form.manifest:
        return layout.problem(folders[0])
    for marker in form.markers:
        if not _has(folders, marker.names):
            return marker.lacks
    for path in (folder / name for folder in folders for name in form.metadata):
        try:
            if path.exists() and (lacks := dcp.missing(path.parent)):
                return lacks
        except FileNotFoundError:
            return "it was deleted meanwhile"
    return ""


def is_finished(folders: Sequence[Path], form: Layout) -> bool:
    """Whether the save got to its end, also where a file was damaged later."""
    if form.manifest:
        return (folders[0] / layout.MANIFEST).exists()
    return all(_has(folders, marker.names) for marker in form.markers)


def checkpoints(folders: Sequence[Path], form: Layout) -> list[Checkpoint]:
    """Every checkpoint below `folders`, newest first. The parts of one may be in several; `path` is the first."""
    if form.manifest:
        return [checkpoint for folder in folders for checkpoint in layout.scan(folder)]
    found = steps(folders, form)
    return [_checkpoint(step, found[step], form) for step in sorted(found, reverse=True)]


def _checkpoint(step: int, parts: Sequence[Path], form: Layout) -> Checkpoint:
    pinned = any((part / PIN).exists() for part in parts)
    return Checkpoint(step, parts[0], sum(map(size_bytes, parts)), problem(parts, form), pinned)


def _has(folders: Sequence[Path], names: Sequence[str]) -> bool:
    for path in (folder / name for folder in folders for name in names):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if path.stat().st_size > 0:
                return True
    return False
