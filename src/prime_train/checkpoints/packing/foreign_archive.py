"""Packs and unpacks checkpoints of other trainers (foreign.py); a kill loses nothing. Decides nothing.

Until all parts of a checkpoint are moved no byte is packed, and `finish_moves` finishes an interrupted move.
From there on it is packed as every checkpoint is (archive.py). The caller makes sure that no trainer writes or loads
there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_train.checkpoints import in_use, layout, listing
from prime_train.checkpoints.layout import MANIFEST, SavedCheckpoint
from prime_train.checkpoints.packing import archive
from prime_train.checkpoints.packing.archive import DamagedError
from prime_train.checkpoints.packing.foreign import FOLDER, FoundStep, find_taken, list_packed, list_status, locate
from prime_train.checkpoints.packing.packed import ManifestEntry, Read
from prime_train.checkpoints.packing.packing_plan import DEFAULT, Sizes
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core import outside
from prime_train.core.outside import RECORD_BYTES
from prime_train.core.rundir import sync, write_atomic

_KEY = "foreign"  # in the manifest: what the trainer's files were beside their bytes
_BOUNDS = {"uid": 2**32, "gid": 2**32, "ns": 2**63}  # what a system call takes


def pack(places: StepPlaces, found: FoundStep, on_read: Read = lambda _: None, sizes: Sizes = DEFAULT) -> None:
    """Move a checkpoint without an obstacle and pack it; it is complete at every moment after the move.

    Raises DamagedError where files change meanwhile, UserError where the disk is full, and OSError, also where another
    one of this step is packed.
    """
    root, folder = places.checkpoints[0], locate(places, found.step)
    # The manifest that is there names the only copy of the other one's bytes.
    if taken := find_taken(places, found.step):
        raise FileExistsError(errno.EEXIST, taken, os.fspath(folder))
    _make_folders(folder)
    before = _describe(root, found.parts)
    files = {name: {"bytes": size, "sha256": _hash(root / name)} for name, (size, *_) in before.items()}
    if _describe(root, found.parts) != before:
        raise DamagedError("a file changed while it was read")
    kept = {name: {"mode": mode, "uid": uid, "gid": gid, "ns": ns} for name, (_, mode, uid, gid, ns) in before.items()}
    parts = [str(part.relative_to(root)) for part in found.parts]
    document = {"version": 1, "step": found.step, "files": files, _KEY: {"parts": parts, "files": kept}}
    text = json.dumps(document, indent=1)
    if len(text) > RECORD_BYTES:
        raise OSError(errno.EFBIG, "it has too many files for one manifest", os.fspath(folder))
    write_atomic(folder / MANIFEST, text, is_private=False)
    _move(root, folder, parts)
    # It has another name since, so what opened it before this moment is all that can have it open.
    if opened := in_use.opened_by([folder]):
        unpack(places, found.step)
        raise OSError(errno.EBUSY, f"{opened} and reads or writes it", os.fspath(found.parts[0]))
    archive.compress(folder, sizes, on_read)


def _make_folders(folder: Path) -> None:
    """Only for this user, because packed files do not have the modes of the trainer's. Raises OSError for a link."""
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
    _refuse_links(folder)


def _refuse_links(folder: Path) -> None:
    for path in (folder.parent, folder):
        if path.is_symlink():
            raise OSError(errno.ELOOP, listing.LINK, os.fspath(path))


def _describe(root: Path, parts: Sequence[Path]) -> dict[str, tuple[int, int, int, int, int]]:
    """Name -> size, mode, owner, group and time of the last change of each file."""
    found = {}
    for path, status in list_status(parts):
        kept = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns)
        found[str(path.relative_to(root))] = (status.st_size, *kept)
    return found


def _hash(path: Path) -> str:
    """SHA-256 of a file, whose bytes are on the disk when this returns."""
    with outside.open_regular(path, path.parent) as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _move(root: Path, to: Path, parts: Sequence[str]) -> None:
    """Rename the parts of a checkpoint into another folder. Raises OSError, with all back, also where one is there."""
    moved: list[str] = []
    try:
        for part in parts:
            if os.path.lexists(to / part):  # rename would replace a file
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(to / part))
            (to / part).parent.mkdir(parents=True, exist_ok=True)
            (root / part).rename(to / part)
            moved.append(part)
            sync((to / part).parent)
            sync((root / part).parent)
    except OSError:  # another disk, or no right to rename
        for part in reversed(moved):
            (to / part).rename(root / part)
        raise


# --- unpacking --------------------------------------------------------------------------------------


def unpack(places: StepPlaces, step: int, on_read: Read = lambda _: None) -> None:
    """Restore a packed checkpoint under the name it had: the same bytes, modes and times, and the owners if allowed.

    Raises DamagedError, UserError where the disk is full, and OSError, also where the trainer has saved the step again.
    """
    root, folder = places.checkpoints[0], locate(places, step)
    _refuse_links(folder)
    parts, kept = _read_kept(folder)
    _read_entries(folder)
    for part in parts:
        if os.path.lexists(root / part):
            raise FileExistsError(errno.EEXIST, "its trainer has saved the step again", os.fspath(root / part))
    archive.restore(folder, on_read=on_read)
    for name, was in kept.items():
        _give_back(folder, name, was)
    _move(folder, root, parts)
    _remove_container(folder)


def _give_back(folder: Path, name: str, was: Mapping[str, int]) -> None:
    """Give a restored file mode and time, and the owner where this user may. Raises OSError, also for a link."""
    descriptor = outside.open_descriptor(folder / name, folder)
    try:
        status = os.fstat(descriptor)
        uid = was["uid"] if os.geteuid() == 0 else status.st_uid
        if (uid, was["gid"]) != (status.st_uid, status.st_gid):
            # Network disks refuse it even to root. A checkpoint with another owner is better than none.
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, uid, was["gid"])
        os.fchmod(descriptor, was["mode"])
        os.utime(descriptor, ns=(was["ns"], was["ns"]))
    finally:
        os.close(descriptor)


def _read_kept(folder: Path) -> tuple[list[str], dict[str, dict[str, int]]]:
    """The parts, and mode, owner, group and time of each file. DamagedError where the manifest lacks them."""
    try:
        document: Any = outside.read_json(folder / MANIFEST, RECORD_BYTES, folder)[_KEY]
        parts = [str(part) for part in document["parts"]]
        kept = {
            str(name): {key: int(was[key]) for key in ("uid", "gid", "ns")} | {"mode": stat.S_IMODE(int(was["mode"]))}
            for name, was in document["files"].items()
        }
        if any(abs(was[key]) >= bound for was in kept.values() for key, bound in _BOUNDS.items()):
            raise ValueError("an owner or a time is out of range")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} does not name what was packed: {error}") from None
    if fault := next(filter(None, map(outside.name_fault, [*parts, *kept])), ""):
        raise DamagedError(f"{MANIFEST} names a file that is none of the checkpoint: {fault}")
    if not all(any(name == part or name.startswith(f"{part}/") for part in parts) for name in kept):
        raise DamagedError(f"{MANIFEST} names a file that is in no part of the checkpoint")
    return parts, kept


def _read_entries(folder: Path) -> list[ManifestEntry]:
    """The entry of each file. DamagedError where the manifest lacks them."""
    try:
        return layout.entries(folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} is unreadable: {error}") from None


def _remove_container(folder: Path) -> None:
    """Remove what is left of the folder of a packed checkpoint. Raises OSError if it still has a file."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for left in _list_temporary(folder):
        left.unlink()
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        path.rmdir()  # of parts that lay in a folder of their own
    folder.rmdir()
    _remove_if_empty(folder.parent)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def finish_moves(places: StepPlaces) -> dict[int, DamagedError | OSError]:
    """Bring moves that a kill has cut to their end. Returns step -> why that step's could not be. Raises OSError."""
    root = places.checkpoints[0]
    faults: dict[int, DamagedError | OSError] = {}
    for found in list_packed(places):
        try:
            _finish_move(root, found)
        except (DamagedError, OSError) as error:  # the others can still be packed and restored
            faults[found.step] = error
    _remove_if_empty(root / FOLDER)
    return faults


def _finish_move(root: Path, found: SavedCheckpoint) -> None:
    folder = found.path
    _refuse_links(folder)
    if not (folder / MANIFEST).exists():
        # Nothing was moved, or all is back.
        if not {path for path in folder.rglob("*") if not path.is_dir()} - set(_list_temporary(folder)):
            _remove_container(folder)
        return
    if found.complete or any(entry.segments for entry in _read_entries(folder)):
        return
    parts, _ = _read_kept(folder)
    outside_it = [part for part in parts if not os.path.lexists(folder / part)]
    if outside_it == parts:
        _remove_container(folder)
    elif all(os.path.lexists(root / part) for part in outside_it):
        _move(root, folder, outside_it)


def _list_temporary(folder: Path) -> list[Path]:
    """Manifests that a kill cut while they were written."""
    return list(folder.glob(f".{MANIFEST}.*.tmp"))
