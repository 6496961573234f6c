"""Restores a backup to the disk. Every file is verified beside its place before a folder gets its name.

Files are written into a folder `.pulling-step_N.ID` beside the checkpoints. A pull that was interrupted continues
there: the parts that match are kept. A folder of a complete checkpoint is never replaced.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from prime_train.backups import inventory
from prime_train.backups.inventory import StoredBackup
from prime_train.backups.manifest import File, Manifest, ObjectPart
from prime_train.backups.push import unpack
from prime_train.backups.source import root_names
from prime_train.backups.store import ObjectError, Store
from prime_train.checkpoints import folder_layout, step_folders
from prime_train.checkpoints.aside import set_aside
from prime_train.checkpoints.folder_layout import FolderLayout
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.step_names import read_name
from prime_train.checkpoints.tracker import has_other_text, read_tracker, write_tracker
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import sync
from prime_train.core.units import format_bytes

STAGING = ".pulling-"
_SPARE_BYTES = 64 * 2**20  # that stay free on the disk

Read = Callable[[int], None]  # called with the number of bytes that are verified on the disk
Skip = Callable[[StoredBackup, str], None]  # called with each newer backup that is not restored, and why


@dataclass(frozen=True, slots=True)
class Pulled:
    step: int
    id: str
    size_bytes: int
    folders: tuple[Path, ...]
    set_aside: tuple[Path, ...] = ()  # incomplete folders that had its names


def restore_newest(
    store: Store, run: str, places: StepPlaces, on_read: Read = lambda _: None, on_skip: Skip = lambda *_: None
) -> Pulled | None:
    """Restore the newest complete backup if no complete checkpoint on the disk is as new; None where none is needed.

    A backup that is broken, or fails its hashes, is skipped for the one before. Raises UserError where the bucket
    cannot be read, and DamagedBackupError where all that finished are broken and the disk has no checkpoint either.
    """
    local = step_folders.checkpoints(places.checkpoints, places.layout)
    newest_here = next((one.step for one in local if one.complete), 0)
    newer = [one for one in inventory.list_backups(store, run, places) if one.step > newest_here]
    try:
        return pull_newest(store, newer, places, on_read, on_skip)
    except DamagedBackupError:
        if newest_here:
            return None
        raise


class DamagedBackupError(UserError):
    """One backup cannot be restored here. Others may be whole."""


def pull_newest(
    store: Store,
    newest_first: Sequence[StoredBackup],
    places: StepPlaces,
    on_read: Read = lambda _: None,
    on_skip: Skip = lambda *_: None,
) -> Pulled | None:
    """Restore the first of these backups that is whole.

    None where no upload finished. Raises DamagedBackupError, that of the newest, where all that finished are
    broken; then UserError and OSError as `pull` does.
    """
    first: DamagedBackupError | None = None
    for one in newest_first:
        if not (one.complete or one.broken):
            continue  # an upload that did not finish has never been a backup
        try:
            if one.problem:
                raise _damaged(store, one.folder, one.problem)
            return pull(store, one, places, on_read)
        except DamagedBackupError as error:
            on_skip(one, error.what)
            first = first or error
    if first is not None:
        raise first
    return None


def pull(store: Store, stored: StoredBackup, places: StepPlaces, on_read: Read = lambda _: None) -> Pulled:
    """Restore one complete backup. Raises DamagedBackupError, UserError, OSError; nothing is changed then."""
    found = stored.manifest
    assert found is not None
    roots = _find_roots(found, places, store)
    staging = {root: roots[root] / f"{STAGING}step_{found.step}.{found.id}" for root in found.roots}
    for folder in staging.values():
        for path in (folder, *folder.rglob("*")):
            if path.is_symlink():  # it would lead to files elsewhere
                path.unlink()
    _require_room(store, found, roots, staging)
    with ThreadPoolExecutor(store.provider.workers, "backup") as pool:
        for file in found.files:
            folder = staging[file.root] / f"step_{found.step}"
            _fetch_file(_Fetch(store, stored.folder, pool, on_read), file, folder / file.name)
    staged = [staging[root] / f"step_{found.step}" for root in found.roots]
    for folder in staged:
        _drop_strangers(folder, {file.name for file in found.files if staging[file.root] == folder.parent})
        for directory, _, _ in os.walk(folder, topdown=False):
            sync(Path(directory))
    if places.layout.proofs:
        return _place_parts(store, stored, places, staging)
    parts = [path for path in staged if path.parent.parent in places.checkpoints]
    if problem := step_folders.problem(parts, places.layout):
        raise _damaged(store, stored.folder, problem)
    return _put_in_place(found, roots, staging)


def _place_parts(store: Store, stored: StoredBackup, places: StepPlaces, staging: dict[str, Path]) -> Pulled:
    """Rename what another trainer saved to the names that it has there. What has a name already is set aside."""
    found, form, roots = stored.manifest, places.layout, root_names(places)
    assert found is not None
    read = ((file.root, read_name(file.name, form)) for file in found.files)
    parts = sorted({(root, name.part) for root, name in read if name is not None})
    inside = {root: staging[root] / f"step_{found.step}" for root in found.roots}
    for root, part in parts:
        _name_in_tracker((inside[root] / part).parent, form, found.step)
    if problem := step_folders.problem([inside[root] / part for root, part in parts], form):
        raise _damaged(store, stored.folder, problem)
    placed, aside = [], []
    for root, part in parts:
        target = roots[root] / part
        target.parent.mkdir(parents=True, exist_ok=True)
        aside += [set_aside(target)] if os.path.lexists(target) else []
        placed.append((inside[root] / part).rename(target))
        _name_in_tracker(target.parent, form, found.step)
        sync(target.parent)
    for folder in staging.values():
        shutil.rmtree(folder)
    return Pulled(found.step, found.id, found.size_bytes, tuple(placed), tuple(aside))


def _name_in_tracker(folder: Path, form: FolderLayout, step: int) -> None:
    """Let the file in which the trainer names its latest checkpoint name this one, unless it names a later one."""
    if form.tracker is not None and not has_other_text(folder, form.tracker):
        named = read_tracker(folder, form.tracker)
        if named is None or named < step:
            write_tracker(folder, form.tracker, step)


def _find_roots(found: Manifest, places: StepPlaces, store: Store) -> dict[str, Path]:
    names = root_names(places)
    unknown = [root for root in found.roots if root not in names]
    if unknown:
        problem = f"it has files for the folder {unknown[0]!r}, and this run keeps its own in {', '.join(names)}"
        raise _damaged(store, found.run, problem)
    return names


def _require_room(store: Store, found: Manifest, roots: dict[str, Path], staging: dict[str, Path]) -> None:
    """Raise UserError if the disk has no room for what is still to be fetched, DamagedBackupError if it never has."""
    for folder in {roots[root] for root in found.roots}:
        folder.mkdir(parents=True, exist_ok=True)
    first = roots[found.roots[0]]
    have = sum(folder_layout.measure(folder).size_bytes for folder in staging.values())
    disk = shutil.disk_usage(first)
    needed, free = found.size_bytes - have + _SPARE_BYTES, disk.free
    if found.size_bytes > disk.total:  # no room can be made for it; its manifest may claim any size
        problem = f"it has {format_bytes(found.size_bytes)}, and the whole disk {format_bytes(disk.total)}"
        raise _damaged(store, found.run, problem)
    if needed > free:
        what = f"step {found.step} needs {format_bytes(needed)} more, and {format_bytes(free)} are free"
        why = "a backup is verified beside its place before it is used"
        raise UserError(what, str(first), why, "make room there, or give the run another folder", ExitCode.OUT_OF_REACH)


class PartError(ValueError):
    """A part of a file is not what its manifest names; the message has the reason."""


def read_part(store: Store, folder: str, part: ObjectPart) -> bytes:
    """A piece of a file, unpacked, and proved by the hashes of its manifest. Raises PartError, and UserError."""
    name = f"{part.object[:22]}..."
    try:
        stored = store.read(f"{folder}/{part.object}", part.stored_bytes)
    except ObjectError as error:
        raise PartError(f"{name} cannot be used: {error.why}") from None
    if stored is None or hashlib.sha256(stored).hexdigest() != part.sha256:
        raise PartError(f"{name} does not match its SHA-256")
    if not part.packed:
        return stored
    try:
        piece = unpack(stored, part.size_bytes)
    except ValueError as error:
        raise PartError(f"{name} does not unpack: {error}") from None
    if hashlib.sha256(piece).hexdigest() != part.piece_sha256:
        raise PartError(f"{name} does not unpack to what was packed")
    return piece


@dataclass(frozen=True, slots=True)
class _Fetch:
    store: Store
    folder: str
    pool: ThreadPoolExecutor
    on_read: Read

    def read(self, part: ObjectPart) -> bytes:
        try:
            return read_part(self.store, self.folder, part)
        except PartError as error:
            raise _damaged(self.store, self.folder, str(error)) from None

    def pieces(self, parts: Sequence[ObjectPart]) -> Iterator[bytes]:
        """The pieces in order; some are fetched ahead."""
        waiting: deque[Future[bytes]] = deque()
        ahead = self.store.provider.workers
        for part in parts:
            waiting.append(self.pool.submit(self.read, part))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _fetch_file(fetch: _Fetch, file: File, path: Path) -> None:
    """Write one file, verified by its hash, or complete what is there of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise _damaged(fetch.store, str(path), "it is no plain file")
    with open(path, "r+b" if path.exists() else "xb") as out:
        digest = hashlib.sha256()
        matching = _matching_parts(file, path, digest) if path.stat().st_size else 0
        out.seek(sum(part.size_bytes for part in file.parts[:matching]))
        out.truncate()
        fetch.on_read(out.tell())
        for piece in fetch.pieces(file.parts[matching:]):
            digest.update(piece)
            out.write(piece)
            fetch.on_read(len(piece))
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256:
        path.unlink()
        raise _damaged(fetch.store, fetch.folder, f"{file.name} does not match its SHA-256")


def _matching_parts(file: File, path: Path, digest: hashlib._Hash) -> int:
    """How many parts at the start of a staged file are right; `digest` is updated with them."""
    with outside.open_regular(path) as staged:
        for number, part in enumerate(file.parts):
            piece = staged.read(part.size_bytes)
            if hashlib.sha256(piece).hexdigest() != part.piece_sha256:
                return number
            digest.update(piece)
    return len(file.parts)


def _put_in_place(found: Manifest, roots: dict[str, Path], staging: dict[str, Path]) -> Pulled:
    """Rename the verified folders. An incomplete folder of the same name is set aside."""
    placed, aside = [], []
    for root in found.roots:
        staged, target = staging[root] / f"step_{found.step}", roots[root] / f"step_{found.step}"
        if target.exists():
            names = (target.with_name(f"{target.name}.set_aside.{number}") for number in count(1))
            free = next(name for name in names if not name.exists())
            target.rename(free)
            aside.append(free)
        staged.rename(target)
        staging[root].rmdir()
        sync(roots[root])
        placed.append(target)
    return Pulled(found.step, found.id, found.size_bytes, tuple(placed), tuple(aside))


def _drop_strangers(folder: Path, names: set[str]) -> None:
    """Delete files in a staging folder that the manifest does not name."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path.relative_to(folder).as_posix() not in names):
            path.unlink()


def _damaged(store: Store, folder: str, problem: str) -> DamagedBackupError:
    why = "the backup is not what was uploaded, so it is not restored"
    fix = "pull an older step: `prime-train backup status RUN` lists them"
    return DamagedBackupError(problem, f"{store.root}/{folder}", why, fix, ExitCode.OUT_OF_REACH)
