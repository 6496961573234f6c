"""Reads the local checkpoints that can be backed up, of any program: their folders, files and identity.

`checkpoints/step_folders.py` judges which are complete. The identity of a checkpoint is that of its content as it was
saved, so packing it without loss does not change it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prime_train.backups import manifest as manifests
from prime_train.checkpoints import folder_layout, in_use, layout, step_folders
from prime_train.checkpoints.packing.packed import ManifestEntry
from prime_train.checkpoints.step_folders import STABLE, StepPlaces
from prime_train.core import outside
from prime_train.core.outside import RECORD_BYTES
from prime_train.core.rundir import write_atomic

_PIECE_BYTES = 8 * 2**20
_MOST_KNOWN = 20_000  # hashes that are remembered


class ChangedError(Exception):
    """The checkpoint was deleted, packed or damaged while it was read; the message has the reason."""


class Seen(NamedTuple):
    """A file as it was when it was listed. It is read again only if nothing of this changed."""

    size_bytes: int
    changed_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class BackupSource:
    """One complete checkpoint: its step folders, or its files, by the name of the root they are in.

    `bases`: for a trainer with names of its own, the root itself, from which the names of files begin.
    """

    step: int
    folders: tuple[tuple[str, Path], ...]
    size_bytes: int
    pinned: bool
    bases: tuple[tuple[str, Path], ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for _, path in self.folders)

    def locate(self, root: str, name: str) -> Path:
        """The path of a file that `list_files` names."""
        return dict(self.bases or self.folders)[root] / name


def root_names(places: StepPlaces) -> dict[str, Path]:
    """A name for every folder that may hold a part of a checkpoint, the same on every machine with this config.

    It is the path below the run's folder, or @0, @1 ... for folders elsewhere.
    """
    names: dict[str, Path] = {}
    for number, folder in enumerate((*places.checkpoints, *places.weights, *places.broadcasts)):
        inside = folder != places.root and folder.is_relative_to(places.root)
        names[folder.relative_to(places.root).as_posix() if inside else f"@{number}"] = folder
    return names


def list_sources(places: StepPlaces) -> list[BackupSource]:
    """Every complete checkpoint, newest first.

    Exported weights and broadcasts of its step belong to it. A step whose weights or broadcast are still being written
    is left out.
    """
    names = root_names(places)
    extras = (*places.weights, *places.broadcasts)
    sources = []
    for checkpoint in step_folders.checkpoints(places.checkpoints, places.layout):
        if not checkpoint.complete:
            continue
        folders, is_ready = [], True
        for name, root in names.items():
            for path in folder_layout.steps([root], places.layout).get(checkpoint.step, ()):
                is_ready = is_ready and (root not in extras or (path / STABLE).exists())
                folders.append((name, path))
        if is_ready:
            size_bytes = sum(folder_layout.measure(path).size_bytes for _, path in folders)
            bases = tuple(names.items()) if places.layout.proofs else ()
            sources.append(BackupSource(checkpoint.step, tuple(folders), size_bytes, checkpoint.pinned, bases))
    return sources


@contextlib.contextmanager
def using(source: BackupSource) -> Iterator[None]:
    """Protect the checkpoint from prime-train's deletions and packing. Raises ChangedError where it is gone."""
    with ExitStack() as marks:
        for path in filter(Path.is_dir, source.paths):  # a file has no place for a mark
            for old in path.glob(f"{in_use.MARK}.*"):
                if not in_use.marked_by(path):  # of processes that were killed
                    old.unlink(missing_ok=True)
            if user := in_use.marked_by(path):
                raise ChangedError(f"{user} uses it")
            try:
                marks.enter_context(in_use.using(path))
            except FileNotFoundError:
                raise ChangedError("it was deleted meanwhile") from None
        yield


def list_files(source: BackupSource) -> dict[tuple[str, str], Seen]:
    """Every file of the checkpoint by root and name. Raises ChangedError for anything that is no plain file."""
    found: dict[tuple[str, str], Seen] = {}
    bases = dict(source.bases)
    for root, part in source.folders:
        for path in _walk(part):
            try:
                status = path.lstat()
            except FileNotFoundError:
                raise ChangedError(f"{path.name} was deleted meanwhile") from None
            relative = path.relative_to(bases.get(root, part)).as_posix()
            if not stat.S_ISREG(status.st_mode) or not manifests.is_safe_name(relative):
                raise ChangedError(f"{relative!r} is no plain file with a plain name")
            found[root, relative] = Seen(status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def _walk(part: Path) -> Iterator[Path]:
    """All but folders in a step folder, or the file that the part is."""
    if not part.is_dir():
        yield part
        return
    for directory, folders, names in os.walk(part, onerror=_raise):
        for name in (*names, *(name for name in folders if Path(directory, name).is_symlink())):
            if not _is_ours_to_leave(name):
                yield Path(directory, name)


def _raise(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        raise ChangedError("it was deleted meanwhile")
    raise error


def _is_ours_to_leave(name: str) -> bool:
    """Marks, pins and files that are being written: they are no part of a checkpoint."""
    return name == layout.PIN or name.split(".")[0] == in_use.MARK or (name.startswith(".") and name.endswith(".tmp"))


class Hashes:
    """The SHA-256 of local files, remembered by size, time and inode. Without its file all are computed again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            document = outside.read_json(path, RECORD_BYTES, within=path.parent)
            if isinstance(document, dict):
                self._known = {str(key): str(value) for key, value in document.items()}

    def of(self, path: Path, seen: Seen, on_read: Callable[[int], None] = lambda _: None) -> str:
        """The hash of a file. Raises OSError."""
        key = f"{seen.inode}:{seen.size_bytes}:{seen.changed_ns}:{path}"
        if key not in self._known:
            digest = hashlib.sha256()
            with outside.open_regular(path) as file:
                while piece := file.read(_PIECE_BYTES):
                    digest.update(piece)
                    on_read(len(piece))
            self._known[key] = digest.hexdigest()
        return self._known[key]

    def keep(self) -> None:
        """Write what is known. Raises OSError."""
        newest = dict(list(self._known.items())[-_MOST_KNOWN:])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, json.dumps(newest))


@dataclass(frozen=True, slots=True)
class ContentIdentity:
    """The id of a checkpoint's content, and the hash that each file must have where it is known."""

    id: str
    sha256: dict[tuple[str, str], str]


def identify(
    source: BackupSource, places: StepPlaces, files: dict[tuple[str, str], Seen], hashes: Hashes
) -> ContentIdentity:
    """The identity of a checkpoint whose files were listed.

    Raises ChangedError, and OSError. The manifest of the bundled trainer has the hashes; other checkpoints are read.
    """
    try:
        if places.layout.manifest:
            return _identify_by_manifest(source)
        known = {(root, name): hashes.of(source.locate(root, name), seen) for (root, name), seen in files.items()}
    except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
        raise ChangedError(f"it changed meanwhile: {error}") from None
    hashes.keep()
    entries = [(root, name, files[root, name].size_bytes, digest) for (root, name), digest in known.items()]
    return ContentIdentity(manifests.identify(entries), known)


def _identify_by_manifest(source: BackupSource) -> ContentIdentity:
    root, folder = source.folders[0]
    entries = layout.entries(folder)
    as_saved = [(root, entry.name, entry.size_bytes, entry.sha256_as_saved or entry.sha256) for entry in entries]
    plain = {(root, entry.name): entry.sha256 for entry in entries if _is_plain(entry)}
    return ContentIdentity(manifests.identify(as_saved), plain)


def _is_plain(entry: ManifestEntry) -> bool:
    """Whether the file on the disk has the hash of its entry."""
    return entry.kept_bytes == entry.size_bytes and not entry.segments and not entry.edits
