"""Judges which checkpoints of a program are complete, by its layout (folder_layout.py). Deletes nothing.

This is the only judge: the supervisor, the disk watch, `validate`, `status`, `ckpt` and the report all use it.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prime_train.checkpoints import dcp, layout, listing, proofs
from prime_train.checkpoints.folder_layout import (
    BUNDLED,
    NO_STEP,
    FolderLayout,
    layout_from,
    list_bounded,
    list_roots,
    measure,
    step_of,
    steps,
)
from prime_train.checkpoints.layout import PIN, SavedCheckpoint
from prime_train.checkpoints.proofs import JudgedFiles
from prime_train.checkpoints.tracker import has_other_text, read_tracker
from prime_train.core.outside import OutsideError


def choose_layout(folders: Sequence[Path], forms: Sequence[FolderLayout]) -> FolderLayout:
    """The one of several layouts of a trainer by which a checkpoint below `folders` has all files; else the first."""
    for form in forms:
        saved = steps(folders, form)
        if any(is_finished(saved[step], form) for step in sorted(saved, reverse=True)[:_NEWEST]):
            return form
    return forms[0]


def problem(folders: Sequence[Path], form: FolderLayout) -> str:
    """What the checkpoint of one step lacks, whose parts are in `folders`; "" where it is complete."""
    if form.manifest:
        return layout.problem(folders[0])
    if form.proofs:
        try:
            return find_unproven(folders, form)
        except FileNotFoundError:
            return "it was deleted meanwhile"
        except OSError as error:
            name = proofs.show_name(Path(str(error.filename or folders[0])).name)
            return f"{name} is unreadable: {error.strerror or error}"
    for marker in form.markers:
        if not _has(folders, marker.names):
            return marker.lacks
    # The markers stay when a file is lost later; this file names all others.
    for path in (folder / name for folder in folders for name in form.metadata):
        try:
            if path.exists() and (lacks := dcp.missing(path.parent)):
                return lacks
        except FileNotFoundError:
            return "it was deleted meanwhile"
        except OutsideError as error:
            return f"{dcp.METADATA} is unreadable: {error}"
    return ""


def find_unproven(paths: Sequence[Path], form: FolderLayout) -> str:
    """The first proof that does not hold for the parts of one step; "" where all do.

    Raises OSError where a file cannot be read: then it is not known whether the checkpoint is complete.
    """
    judged = list_judged(paths, form)
    base = paths[0].parent.parent
    saved = {part.folder.parent.name for part in judged}
    # A part that the trainer never saves has no folder.
    for name in form.parts:
        if name not in saved and (base / name).is_dir():
            return f"no part in {name}: the save did not finish"
    lacks = next(filter(None, (proofs.find_problem(part, form.proofs) for part in judged)), "")
    lacks = lacks or (_find_unlike(judged[0], form) if form.alike else "")
    if not lacks and form.step_key and judged[0].step == NO_STEP:
        what = f"it does not say of which step it is: no {form.step_key}"
        raise OutsideError(errno.ENODATA, what, paths[0], "its name has no number, and its content none")
    return lacks


def _find_unlike(judged: JudgedFiles, form: FolderLayout) -> str:
    """A file that the next newer step has and this one lacks. Raises OSError.

    Trainers delete old checkpoints file by file, in any order: what a kill leaves can look like one without optimizer.
    """
    root = judged.folder.parent
    newer = {step: found[0] for step, found in steps([root], replace(form, below=(".",))).items() if step > judged.step}
    if not newer:
        return ""
    step = min(newer)
    others = proofs.list_proven(list_bounded(newer[step]).keys(), form.proofs, step)
    missing = others - proofs.list_proven(judged.files.keys(), form.proofs, judged.step)
    if not missing:
        return ""
    return f"no {proofs.show_name(min(missing))}, which step {step} has: its deletion or its save did not finish"


def list_judged(paths: Sequence[Path], form: FolderLayout) -> list[JudgedFiles]:
    """What is judged of one step: each of its folders, or all of its files as one. Raises OSError."""
    step = step_of(paths[0], form) or 0
    tracked = _read_tracked(paths[0].parent, form)
    if form.kind == "file":
        roots = sorted({path.parent for path in paths})
        beside = [{path.name: path.lstat() for path in paths if path.parent == root} for root in roots]
        return [JudgedFiles(*one, step, form.ranks, tracked) for one in zip(roots, beside, strict=True)]
    return [JudgedFiles(path, list_bounded(path), step, form.ranks, tracked) for path in paths]


def _read_tracked(root: Path, form: FolderLayout) -> int | None:
    """The step up to which the tracker proves that a save got to its end. Raises OSError."""
    if form.tracker is None or not any(proof.kind == "tracker" for proof in form.proofs):
        return None
    named = read_tracker(root, form.tracker)
    saved = sorted(steps([root], replace(form, below=(".",), parts=())))
    if named in saved or has_other_text(root, form.tracker) or not (root / form.tracker.file).exists():
        return named
    # Cut while it was written, for the newest step or an earlier one: those before the newest were done by then.
    return saved[-2] if len(saved) > 1 else None


def find_missing_name(names: Collection[str], form: FolderLayout) -> str:
    """What a checkpoint with these files lacks, by their names below its step folders; "" where none is missing."""
    if form.manifest:
        return layout.find_missing_name(names)
    if form.proofs:
        return proofs.find_missing_name(names, form.proofs, form.ranks)
    return next((marker.lacks for marker in form.markers if not set(marker.names) & set(names)), "")


def is_finished(folders: Sequence[Path], form: FolderLayout) -> bool:
    """Whether the save got to its end, also where a file was damaged later."""
    if form.manifest:
        return (folders[0] / layout.MANIFEST).exists()
    if form.proofs:
        with suppress(OSError):
            return not any(find_missing_name(part.files.keys(), form) for part in list_judged(folders, form))
        return True  # nothing shows that it is the remains of a save
    return all(_has(folders, marker.names) for marker in form.markers)


def checkpoints(
    folders: Sequence[Path], form: FolderLayout, known: MutableMapping[SeenPaths, SavedCheckpoint] | None = None
) -> list[SavedCheckpoint]:
    """Every checkpoint below `folders`, newest first. The parts of one may be in several; `path` is the first.

    `known`: of a caller that looks every few seconds; what was complete is judged again only if an entry of it changed.
    """
    if form.manifest:
        return [checkpoint for folder in folders for checkpoint in layout.scan(folder)]
    found = steps(folders, form)
    if known is None:
        return [_checkpoint(step, found[step], form) for step in sorted(found, reverse=True)]
    return [_recall(step, found[step], form, known) for step in sorted(found, reverse=True)]


SeenPaths = tuple[tuple[Path, int], ...]  # the parts of a step, and when each was changed, in ns since the epoch


def _recall(
    step: int, parts: Sequence[Path], form: FolderLayout, known: MutableMapping[SeenPaths, SavedCheckpoint]
) -> SavedCheckpoint:
    try:
        seen = tuple((part, part.lstat().st_mtime_ns) for part in parts)
    except FileNotFoundError:
        return _checkpoint(step, parts, form)
    if seen not in known:
        # Before the look, so that a later change is noticed.
        checkpoint = _checkpoint(step, parts, form)
        if not checkpoint.complete:
            return checkpoint
        known[seen] = checkpoint
    return known[seen]


def find_newest_complete(folders: Sequence[Path], form: FolderLayout) -> SavedCheckpoint | None:
    """The newest complete checkpoint below `folders`. Older ones are not inspected: there may be thousands."""
    found = steps(folders, form)
    for step in sorted(found, reverse=True):
        checkpoint = layout.inspect(found[step][0]) if form.manifest else _checkpoint(step, found[step], form)
        if checkpoint.complete:
            return checkpoint
    return None


def _checkpoint(step: int, parts: Sequence[Path], form: FolderLayout) -> SavedCheckpoint:
    pinned = any((part / PIN).exists() for part in parts)
    total_bytes, written_s = sum(measure(part).size_bytes for part in parts), listing.written_s(parts[0])
    return SavedCheckpoint(step, str(parts[0]), total_bytes, problem(parts, form), pinned, written_s)


def _has(folders: Sequence[Path], names: Sequence[str]) -> bool:
    for path in (folder / name for folder in folders for name in names):
        with suppress(FileNotFoundError, NotADirectoryError):
            if path.stat().st_size > 0:
                return True
    return False


STABLE = "STABLE"  # a file that is touched when exported weights are whole

_NEWEST = 5  # so many steps show which layout a trainer has


@dataclass(frozen=True, slots=True)
class StepPlaces:
    """The folders that grow with a run's steps; each holds step folders, and need not exist."""

    root: Path  # the run's own folder
    checkpoints: tuple[Path, ...]
    layout: FolderLayout = BUNDLED
    weights: tuple[Path, ...] = ()  # weights alone, exported beside a checkpoint
    broadcasts: tuple[Path, ...] = ()  # weights on their way to an inference engine
    rollouts: tuple[Path, ...] = ()
    temporary: tuple[Path, ...] = ()  # folders in which its saves write temporary files, with the names of the layout
    outputs: tuple[Path, ...] = ()  # where it may write in no known layout: only the room of the disk counts

    @property
    def folders(self) -> tuple[Path, ...]:
        roots = list_roots(self.checkpoints, self.layout)
        return (*(roots or self.checkpoints), *self.weights, *self.broadcasts, *self.rollouts)

    def as_json(self) -> dict[str, Any]:
        folders = {name: list(map(str, getattr(self, name))) for name in _FOLDERS}
        return {"root": str(self.root), "layout": asdict(self.layout), **folders}


_FOLDERS = ("checkpoints", "weights", "broadcasts", "rollouts", "temporary", "outputs")


def places_from(document: Mapping[str, Any]) -> StepPlaces:
    """The value that `as_json` wrote."""
    folders = {name: tuple(map(Path, document[name])) for name in _FOLDERS}
    return StepPlaces(Path(document["root"]), layout=layout_from(document["layout"]), **folders)
