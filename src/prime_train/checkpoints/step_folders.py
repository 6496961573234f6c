"""Lists the step folders or files of a program and judges which checkpoints are complete. Deletes nothing.

This is the only judge: the supervisor, the disk watch, `validate`, `status`, `ckpt` and the report all use it. A
program describes its layout as a `FolderLayout`, a plain value, so that a child process gets it as JSON.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prime_train.checkpoints import dcp, in_use, layout, proofs, removal
from prime_train.checkpoints.cleanup import Kind, StoredItem, Wholeness
from prime_train.checkpoints.layout import PIN, Files, SavedCheckpoint
from prime_train.checkpoints.proofs import FileProof, JudgedFiles
from prime_train.checkpoints.tracker import StepTracker, read_tracker
from prime_train.core import outside
from prime_train.core.outside import OutsideError


class Marker(NamedTuple):
    """A file that shows that a part of a save has finished."""

    names: tuple[str, ...]  # below a step folder; one of them must exist and not be empty
    lacks: str  # what is wrong where none of them does


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """How a program names its step folders, and what makes a checkpoint complete."""

    step: str = r"step_(\d+)"  # matches the whole name; the group is the number
    markers: tuple[Marker, ...] = ()
    metadata: tuple[str, ...] = ()  # where torch.distributed.checkpoint writes `.metadata`, which names every file
    manifest: bool = False  # the folder has the manifest of the bundled trainer (layout.py)
    # What a trainer writes that prime-train does not know more of: its `[[layout]]` in registry/trainers.
    kind: Literal["folder", "file"] = "folder"  # "file": the files of a step lie beside those of other steps
    proofs: tuple[FileProof, ...] = ()  # all must hold
    tracker: StepTracker | None = None  # the file beside the steps that names the latest one
    parts: tuple[str, ...] = ()  # folders below that of the checkpoints that each have a part of every step
    temporary: tuple[str, ...] = ()  # names of files in the folder for temporary files that a kill leaves there
    ranks: int = 0  # processes that save, from the launch; 0: not known


BUNDLED = FolderLayout(manifest=True)


def layout_from(document: Mapping[str, Any]) -> FolderLayout:
    """The layout whose fields `dataclasses.asdict` gives, also after they were JSON."""
    fields = dict(document)
    fields["markers"] = tuple(Marker(tuple(names), lacks) for names, lacks in document["markers"])
    fields["proofs"] = tuple(FileProof(**one | {"names": tuple(one["names"])}) for one in document["proofs"])
    fields["tracker"] = None if document["tracker"] is None else StepTracker(**document["tracker"])
    for name in ("metadata", "parts", "temporary"):
        fields[name] = tuple(document[name])
    return FolderLayout(**fields)


def step_of(path: Path, form: FolderLayout) -> int | None:
    """The number in the name of a step folder or file; None where the name is another."""
    match = re.fullmatch(form.step, path.name)
    return outside.to_count(match[1]) if match else None


def steps(folders: Sequence[Path], form: FolderLayout) -> dict[int, list[Path]]:
    """The step folders or files below `folders` by their number, in the order of `folders`.

    A missing folder has none.
    """
    found: dict[int, list[Path]] = {}
    match = re.compile(form.step).fullmatch
    for folder in folders:
        names = [(named[1], entry) for entry in layout.list_entries(folder) if (named := match(entry.name))]
        for number, entry in sorted(names, key=lambda one: one[1].name):
            step = outside.to_count(number)
            # No link: what is behind one may be the user's own.
            is_one = entry.is_file if form.kind == "file" else entry.is_dir
            if step is not None and is_one(follow_symlinks=False):
                found.setdefault(step, []).append(folder / entry.name)
    return found


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
    return next(filter(None, (proofs.find_problem(part, form.proofs) for part in judged)), "")


def list_judged(paths: Sequence[Path], form: FolderLayout) -> list[JudgedFiles]:
    """What is judged of one step: each of its folders, or all of its files as one. Raises OSError."""
    step = step_of(paths[0], form) or 0
    tracked = None if form.tracker is None else read_tracker(paths[0].parent, form.tracker)
    if form.kind == "file":
        files = {path.name: path.lstat() for path in paths}
        return [JudgedFiles(paths[0].parent, files, step, form.ranks, tracked)]
    return [JudgedFiles(path, list_bounded(path), step, form.ranks, tracked) for path in paths]


def list_bounded(folder: Path) -> Files:
    """The files below a step folder. Raises OutsideError where there are more than any trainer writes."""
    found: dict[str, os.stat_result] = {}
    for name, entry in _walk(folder):
        if len(found) >= _MOST_FILES:
            what = f"it has more than {_MOST_FILES:,} files"
            raise OutsideError(errno.EFBIG, what, folder, "no checkpoint has so many, and listing them takes long")
        with suppress(FileNotFoundError):
            found[name] = entry.stat(follow_symlinks=False)
    return found


def _walk(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything but folders below a folder, by name, one by one. Follows no links."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{prefix}{entry.name}/")
                else:
                    yield prefix + entry.name, entry


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


def checkpoints(folders: Sequence[Path], form: FolderLayout) -> list[SavedCheckpoint]:
    """Every checkpoint below `folders`, newest first. The parts of one may be in several; `path` is the first."""
    if form.manifest:
        return [checkpoint for folder in folders for checkpoint in layout.scan(folder)]
    found = steps(folders, form)
    return [_checkpoint(step, found[step], form) for step in sorted(found, reverse=True)]


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
    total_bytes, written_s = sum(measure(part).size_bytes for part in parts), layout.written_s(parts[0])
    return SavedCheckpoint(step, parts[0], total_bytes, problem(parts, form), pinned, written_s)


def _has(folders: Sequence[Path], names: Sequence[str]) -> bool:
    for path in (folder / name for folder in folders for name in names):
        with suppress(FileNotFoundError, NotADirectoryError):
            if path.stat().st_size > 0:
                return True
    return False


STABLE = "STABLE"  # a file that is touched when exported weights are whole

_MOST_FILES = 100_000  # of a checkpoint: 4,096 ranks write some 16,000
_GROWING = 4  # so many of the newest steps may still receive rollouts
_MEASURE_AGAIN_S = 600.0  # a complete folder is measured again after this, even if its markers did not change


@dataclass(frozen=True, slots=True)
class StepPlaces:
    """The folders that grow with a run's steps; each holds step folders, and need not exist."""

    root: Path  # the run's own folder
    checkpoints: tuple[Path, ...]
    layout: FolderLayout = BUNDLED
    weights: tuple[Path, ...] = ()  # weights alone, exported beside a checkpoint
    broadcasts: tuple[Path, ...] = ()  # weights on their way to an inference engine
    rollouts: tuple[Path, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        return (*self.checkpoints, *self.weights, *self.broadcasts, *self.rollouts)

    def as_json(self) -> dict[str, Any]:
        folders = {name: list(map(str, getattr(self, name))) for name in _FOLDERS}
        return {"root": str(self.root), "layout": asdict(self.layout), **folders}


_FOLDERS = ("checkpoints", "weights", "broadcasts", "rollouts")


def places_from(document: Mapping[str, Any]) -> StepPlaces:
    """The value that `as_json` wrote."""
    folders = {name: tuple(map(Path, document[name])) for name in _FOLDERS}
    return StepPlaces(Path(document["root"]), layout=layout_from(document["layout"]), **folders)


class MeasuredFolder(NamedTuple):
    """A folder with everything in it."""

    size_bytes: int
    changed_s: float  # seconds since the epoch


def measure(folder: Path) -> MeasuredFolder:
    """Size and latest change of all files in a folder. Skips files that vanish meanwhile. Follows no links."""
    size_bytes, changed_s, waiting = 0, 0.0, [os.fspath(folder)]
    with suppress(OSError):
        status = folder.lstat()
        if stat.S_ISREG(status.st_mode):  # a checkpoint that is one file
            return MeasuredFolder(status.st_size, status.st_mtime)
    while waiting:
        for entry in layout.list_entries(waiting.pop()):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                changed_s = max(changed_s, status.st_mtime)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
                else:
                    size_bytes += status.st_size
    return MeasuredFolder(size_bytes, changed_s)


@dataclass(slots=True)
class Stock:
    """Lists a run's items repeatedly. Complete folders are not walked each time, because nothing changes in them."""

    places: StepPlaces
    _walked: dict[Path, tuple[tuple[int, ...], float, MeasuredFolder]] = field(default_factory=dict)

    def take(self, now_s: float) -> list[StoredItem]:
        """Every item at `now_s` (epoch), by kind and step. Raises OSError, but not for files that vanish."""
        places = self.places
        items = [self._saved(step, folders, now_s) for step, folders in self._steps(places.checkpoints)]
        items += [self._stable("weights", step, parts, now_s) for step, parts in self._steps(places.weights)]
        items += [self._stable("broadcast", step, parts, now_s) for step, parts in self._steps(places.broadcasts)]
        # The newest folders of rollouts still get files, so they do not count as complete.
        rollouts = self._steps(places.rollouts)
        items += [self._item("rollouts", *step, "complete", "", now_s) for step in rollouts[:-_GROWING]]
        items += [self._item("rollouts", *step, "unfinished", "", now_s) for step in rollouts[-_GROWING:]]
        # The deletion of a folder with its markers was not decided: removal.put_back renames the folder back.
        asides = [path for root in places.folders for path in removal.list_set_aside(root)]
        decided, why = filter(removal.is_decided, asides), "its deletion was interrupted"
        items += [self._item("leftover", -1, [path], "unfinished", why, now_s) for path in decided]
        # What is deleted is forgotten, because a run makes folders for weeks.
        seen = {path for item in items for path in item.paths}
        self._walked = {path: known for path, known in self._walked.items() if path in seen}
        return items

    def _saved(self, step: int, folders: list[Path], now_s: float) -> StoredItem:
        form = self.places.layout
        if form.manifest and len(folders) == 1 and folders[0] not in self._walked:
            return self._first_seen(step, folders[0], now_s)
        lacks = problem(folders, form)
        wholeness: Wholeness = "complete" if not lacks else "broken" if is_finished(folders, form) else "unfinished"
        return self._item("checkpoint", step, folders, wholeness, lacks, now_s)

    def _first_seen(self, step: int, folder: Path, now_s: float) -> StoredItem:
        """By one listing and one read of the manifest, which give all that there is to know: there may be thousands."""
        key = self._key(folder)  # before the look, so that a later change is noticed
        seen, files = layout.look(folder)
        if not seen.complete:
            wholeness: Wholeness = "broken" if layout.MANIFEST in files else "unfinished"
            return self._item("checkpoint", step, [folder], wholeness, seen.problem, now_s)
        measured = MeasuredFolder(seen.size_bytes, max(status.st_mtime for status in files.values()))
        self._walked[folder] = (key, now_s, measured)
        user = in_use.marked_by(folder) if any(map(in_use.is_mark, files)) else ""
        size_bytes, changed_s = measured
        return StoredItem("checkpoint", step, (folder,), size_bytes, "complete", changed_s, "", seen.pinned, user)

    def _steps(self, folders: Sequence[Path]) -> list[tuple[int, list[Path]]]:
        return sorted(steps(folders, self.places.layout).items())

    def _stable(self, kind: Kind, step: int, folders: list[Path], now_s: float) -> StoredItem:
        whole = any((folder / STABLE).exists() for folder in folders)
        lacks = "" if whole else f"no {STABLE}"
        return self._item(kind, step, folders, "complete" if whole else "unfinished", lacks, now_s)

    def _item(
        self, kind: Kind, step: int, folders: list[Path], wholeness: Wholeness, lacks: str, now_s: float
    ) -> StoredItem:
        parts = [self._measured(folder, wholeness == "complete", now_s) for folder in folders]
        total_bytes, changed_s = sum(part.size_bytes for part in parts), max(part.changed_s for part in parts)
        pinned = any((folder / PIN).exists() for folder in folders)
        user = next(filter(None, map(in_use.marked_by, folders)), "")
        return StoredItem(kind, step, tuple(folders), total_bytes, wholeness, changed_s, lacks, pinned, user)

    def _measured(self, folder: Path, is_whole: bool, now_s: float) -> MeasuredFolder:
        # It may grow, so it is walked each time.
        if not is_whole:
            return measure(folder)
        key, known = self._key(folder), self._walked.get(folder)
        if known is None or known[0] != key or now_s - known[1] >= _MEASURE_AGAIN_S:
            known = self._walked[folder] = (key, now_s, measure(folder))
        return known[2]

    def _key(self, folder: Path) -> tuple[int, ...]:
        """Inode, time and size of a folder and its markers: they change when one of them is written again."""
        found: list[int] = []
        markers = (layout.MANIFEST,) if self.places.layout.manifest else removal.MARKERS
        for path in (str(folder), *(f"{folder}/{marker}" for marker in markers)):
            with suppress(FileNotFoundError, NotADirectoryError):
                status = os.stat(path)  # noqa: PTH116 - pathlib takes three times as long
                found += (status.st_ino, status.st_mtime_ns, status.st_size)
        return tuple(found)
