"""Lists the step folders or files of a program and judges which checkpoints are complete. Deletes nothing.

This is the only judge: the supervisor, the disk watch, `validate`, `status`, `ckpt` and the report all use it. A
program describes its layout as a `FolderLayout`, a plain value, so that a child process gets it as JSON.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prime_train.checkpoints import dcp, file_ends, layout, proofs, torch_values
from prime_train.checkpoints.layout import PIN, Files, SavedCheckpoint
from prime_train.checkpoints.proofs import FileProof, JudgedFiles
from prime_train.checkpoints.tracker import StepTracker, has_other_text, read_tracker
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
    below: tuple[str, ...] = (".",)  # where in the folder of the checkpoints steps can be; `*`: any name
    parts: tuple[str, ...] = ()  # folders in it that each have a part of every step
    temporary: tuple[str, ...] = ()  # names of files in the folder for temporary files that a kill leaves there
    ranks: int = 0  # processes that save, from the launch; 0: not known
    step_key: str = ""  # where a file without a number in its name has the step
    alike: bool = False  # each step has the files of the next newer one: a deletion that was cut leaves fewer
    best: tuple[str, ...] = ()  # a JSON file of a step and the key that names the best one; or a key of torch's file


BUNDLED = FolderLayout(manifest=True)


def layout_from(document: Mapping[str, Any]) -> FolderLayout:
    """The layout whose fields `dataclasses.asdict` gives, also after they were JSON."""
    fields = dict(document)
    fields["markers"] = tuple(Marker(tuple(names), lacks) for names, lacks in document["markers"])
    fields["proofs"] = tuple(FileProof(**one | {"names": tuple(one["names"])}) for one in document["proofs"])
    fields["tracker"] = None if document["tracker"] is None else StepTracker(**document["tracker"])
    for name in ("metadata", "below", "parts", "temporary", "best"):
        fields[name] = tuple(document[name])
    return FolderLayout(**fields)


def choose_layout(folders: Sequence[Path], forms: Sequence[FolderLayout]) -> FolderLayout:
    """The one of several layouts of a trainer by which a checkpoint below `folders` has all files; else the first."""
    for form in forms:
        saved = steps(folders, form)
        if any(is_finished(saved[step], form) for step in sorted(saved, reverse=True)[:_NEWEST]):
            return form
    return forms[0]


def step_of(path: Path, form: FolderLayout) -> int | None:
    """The step of a folder or file by its name, or by its content where its name has no number.

    None where the name is another; NO_STEP where the content does not say it.
    """
    match = re.compile(form.step, re.ASCII).fullmatch(path.name)
    if match is None:
        return None
    number = match[1] if match.re.groups else None
    if number is not None or not form.step_key:
        return outside.to_count(number)
    found = None
    with suppress(OSError):
        found = torch_values.read_number(path, form.step_key, file_ends.version_of(path.lstat()))
    return NO_STEP if found is None else found


def steps(folders: Sequence[Path], form: FolderLayout) -> dict[int, list[Path]]:
    """The step folders or files below `folders` by their number, in the order of `folders`.

    A missing folder has none. Files that do not say of which step they are have NO_STEP.
    """
    found: dict[int, list[Path]] = {}
    match = re.compile(form.step, re.ASCII).fullmatch
    for folder in list_roots(folders, form):
        entries = [entry for entry in _scan(folder) if match(entry.name)]
        for entry in sorted(entries, key=lambda entry: entry.name):
            # No link: what is behind one may be the user's own.
            is_one = entry.is_file if form.kind == "file" else entry.is_dir
            if is_one(follow_symlinks=False) and (step := step_of(folder / entry.name, form)) is not None:
                found.setdefault(step, []).append(folder / entry.name)
    return found


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder one by one, because a million of them need not be held; none of one that is missing."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return


def list_roots(folders: Sequence[Path], form: FolderLayout) -> list[Path]:
    """The folders that hold the steps themselves, in and below `folders`. No link is followed below them."""
    found = []
    for folder in folders:
        for below in (*form.below, *form.parts):
            roots = [folder]
            for name in below.split("/"):
                roots = [inner for root in roots for inner in _enter(root, name)]
            found += roots
    return found


def _enter(root: Path, name: str) -> list[Path]:
    if name == ".":
        return [root]
    entries = sorted(layout.list_entries(root), key=lambda entry: entry.name)
    inside = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [root / one for one in inside if fnmatch.fnmatchcase(one, name)]


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
    total_bytes, written_s = sum(measure(part).size_bytes for part in parts), layout.written_s(parts[0])
    return SavedCheckpoint(step, parts[0], total_bytes, problem(parts, form), pinned, written_s)


def _has(folders: Sequence[Path], names: Sequence[str]) -> bool:
    for path in (folder / name for folder in folders for name in names):
        with suppress(FileNotFoundError, NotADirectoryError):
            if path.stat().st_size > 0:
                return True
    return False


STABLE = "STABLE"  # a file that is touched when exported weights are whole

_NEWEST = 5  # so many steps show which layout a trainer has
NO_STEP = 0  # no trainer saves before its first step
_MOST_FILES = 100_000  # of a checkpoint: 4,096 ranks write some 16,000


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

    @property
    def folders(self) -> tuple[Path, ...]:
        roots = list_roots(self.checkpoints, self.layout)
        return (*(roots or self.checkpoints), *self.weights, *self.broadcasts, *self.rollouts)

    def as_json(self) -> dict[str, Any]:
        folders = {name: list(map(str, getattr(self, name))) for name in _FOLDERS}
        return {"root": str(self.root), "layout": asdict(self.layout), **folders}


_FOLDERS = ("checkpoints", "weights", "broadcasts", "rollouts", "temporary")


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
