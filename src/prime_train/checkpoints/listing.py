"""Lists what is in the folder of a checkpoint, and reads the manifest with the listing. Judges and deletes nothing.

Each folder is opened once and each manifest is read once, because a run may have thousands of checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from prime_train.core import outside

MANIFEST = "COMPLETE.json"
LINK = "it is a symbolic link, which prime-train never follows"
_NO_MANIFEST = f"no {MANIFEST}: the save did not finish"
_STEP = re.compile(r"step_(\d+)\Z")
Files = Mapping[str, os.stat_result]  # by their name below a checkpoint's folder


class NamedStep(NamedTuple):
    """The path of a checkpoint folder as a text, and the step in that name."""

    folder: str
    step: int


def name_step(folder: Path) -> NamedStep:
    """A folder with the step in its name; -1 for another name."""
    match = _STEP.search(folder.name)
    return NamedStep(str(folder), int(match.group(1)) if match else -1)


def list_newest_first(root: Path) -> list[NamedStep]:
    """The checkpoint folders in `root`, highest step first."""
    found: list[NamedStep] = []
    for entry in list_entries(root):
        named = _STEP.fullmatch(entry.name)
        # A link to a folder too, and none for a link that leads to itself, where `is_dir` raises.
        if named and (entry.is_dir(follow_symlinks=False) or os.path.isdir(entry.path)):  # noqa: PTH112
            found.append(NamedStep(entry.path, int(named[1])))
    found.sort(key=attrgetter("step"), reverse=True)
    return found


class ListedFolder(NamedTuple):
    """A folder with the content of the manifest, or what is wrong with it, and what was listed."""

    folder: NamedStep
    content: bytes | str
    files: Files
    status: os.stat_result | None


def list_and_read(folder: NamedStep) -> ListedFolder:
    """List the files of a folder and read the manifest; the folder is opened once.

    The listing is no later than the manifest, so what it proves of a file held when the manifest was written.
    """
    path, files = folder.folder, dict[str, os.stat_result]()
    try:
        opened = outside.open_folder(path)
    except OSError:  # a link, or it is gone
        content = read_manifest(path)
        return ListedFolder(folder, content, {} if content == LINK else list_files(path), None)
    try:
        status = os.fstat(opened)
        return ListedFolder(folder, _list_opened(opened, path, files), files, status)
    finally:
        os.close(opened)


def _list_opened(opened: int, path: str, files: dict[str, os.stat_result]) -> bytes | str:
    """Add the files below an open folder, and return the content of the manifest, or what is wrong with it."""
    manifest, others = None, []
    try:
        with os.scandir(opened) as entries:
            for entry in entries:
                if entry.name == MANIFEST:
                    manifest = entry
                elif entry.is_dir(follow_symlinks=False):
                    others.append(entry)
                else:
                    files[entry.name] = entry.stat(follow_symlinks=False)
        if others:
            files.update(_list_below(others, path))
        if manifest is None:
            return _NO_MANIFEST
        content, files[MANIFEST] = outside.read_listed(manifest, opened, outside.RECORD_BYTES)
        return content
    except FileNotFoundError:  # it is being deleted
        files.update(_list_below(list_entries(path), path))
        return _NO_MANIFEST
    except OSError as error:
        if manifest is not None and not manifest.is_dir(follow_symlinks=False):
            files[MANIFEST] = manifest.stat(follow_symlinks=False)
        return f"{MANIFEST} is unreadable: {error}"


def read_manifest(path: str) -> bytes | str:
    """The content of the manifest of the folder `path`, or what is wrong with it."""
    if os.path.islink(path):  # noqa: PTH114 - pathlib takes three times as long
        return LINK
    try:
        return outside.read_bytes(f"{path}/{MANIFEST}", outside.RECORD_BYTES, path)
    except FileNotFoundError:
        return _NO_MANIFEST
    except OSError as error:
        return f"{MANIFEST} is unreadable: {error}"


def list_entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none of a path that is missing, a file, or a link that leads to itself."""
    try:
        with os.scandir(folder) as inside:
            return list(inside)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return []
        raise


def list_files(folder: Path | str) -> Files:
    """The status of all but folders below a folder, by name. Follows no links, and skips what vanishes meanwhile."""
    return _list_below(list_entries(folder), os.fspath(folder))


def _list_below(entries: Sequence[os.DirEntry[str]], folder: str) -> Files:
    found: dict[str, os.stat_result] = {}
    waiting = [("", entries)]
    while waiting:
        prefix, inside = waiting.pop()
        for entry in inside:
            # A link is listed and not followed: it may lead out of the checkpoint, or in a circle.
            if entry.is_dir(follow_symlinks=False):
                inner = f"{prefix}{entry.name}/"
                waiting.append((inner, list_entries(f"{folder}/{inner}")))
                continue
            try:
                found[prefix + entry.name] = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
    return found


def size_bytes(folder: Path) -> int:
    return 0 if folder.is_symlink() else sum(status.st_size for status in list_files(folder).values())


def written_s(folder: Path | str) -> float:
    """When the manifest was written, or without one the folder was last changed; 0 for a folder that is gone."""
    for path in (f"{folder}/{MANIFEST}", folder):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime  # noqa: PTH116 - pathlib takes three times as long
    return 0.0
