"""Describes how a program names its step folders or files, and lists which there are. Judges and deletes nothing.

A layout is a plain value, so that a child process gets it as JSON. step_folders.py judges by it.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prime_train.checkpoints import file_ends, torch_values
from prime_train.checkpoints.listing import Files, list_entries
from prime_train.checkpoints.proofs import FileProof
from prime_train.checkpoints.tracker import StepTracker
from prime_train.core import outside
from prime_train.core.outside import OutsideError

NO_STEP = 0  # no trainer saves before its first step
_MOST_FILES = 100_000  # of a checkpoint: 4,096 ranks write some 16,000


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
    packs: bool = False  # its trainer leaves a folder with packed checkpoints beside its own alone
    packs_source: str = ""  # how that is known, or what it does to such a folder
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

    A missing folder has none. Files without the number of their step have NO_STEP.
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
    entries = sorted(list_entries(root), key=lambda entry: entry.name)
    inside = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [root / one for one in inside if fnmatch.fnmatchcase(one, name)]


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
        for entry in list_entries(waiting.pop()):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                changed_s = max(changed_s, status.st_mtime)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
                else:
                    size_bytes += status.st_size
    return MeasuredFolder(size_bytes, changed_s)
