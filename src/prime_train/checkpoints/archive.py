"""Packs the files of complete checkpoints and restores them, losing nothing when killed. Decides nothing.

Each step leaves a complete checkpoint. A segment is written, made durable, unpacked again and compared with
the file before the manifest names it, and the part of the file that it replaces is cut off only after that.
Restoring goes the other way. What a kill leaves over is what the manifest does not name: it is cleared at the
next call. The caller sees to it that nobody else writes or loads the checkpoint meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from prime_train.checkpoints import layout, planes
from prime_train.checkpoints.packed import (
    LENGTH,
    MAGIC,
    Entry,
    Read,
    Segment,
    difference,
    head,
    in_order,
    unpacked,
    workers,
)
from prime_train.checkpoints.packing_plan import DEFAULT, SUFFIX, Sizes, leftovers, pieces, to_pack
from prime_train.errors import ExitCode, UserError
from prime_train.units import format_bytes


class DamagedError(Exception):
    """A checkpoint whose bytes are not those that were saved. Nothing of it has been changed."""


def compress(folder: Path, sizes: Sizes = DEFAULT, on_read: Read = lambda _: None) -> None:
    """Pack every file of a complete checkpoint. DamagedError where one is not as it was saved.

    Goes on where an earlier call was killed; nothing is done where all is packed. UserError where the disk is full.
    """
    _clear(folder)
    with workers() as pool, _disk_told(folder):
        for entry in to_pack(folder, sizes):
            _pack_file(folder, entry, _Packing(pool, sizes, on_read))


def restore(folder: Path, on_read: Read = lambda _: None) -> None:
    """Give every file of a packed checkpoint back, byte for byte. DamagedError where a segment does not unpack.

    Goes on where an earlier call was killed; nothing is done where nothing is packed. UserError where the disk is full.
    """
    _clear(folder)
    with workers() as pool, _disk_told(folder):
        for entry in layout.entries(folder):
            if entry.segments:
                _restore_file(folder, entry, pool, on_read)


@dataclass(frozen=True, slots=True)
class _Packing:
    pool: ThreadPoolExecutor
    sizes: Sizes
    on_read: Read


def _pack_file(folder: Path, entry: Entry, packing: _Packing) -> None:
    """From the end to the beginning, segment by segment, cutting off what is packed."""
    path = folder / entry.name
    # Hashing is one thread's work: the last segment is packed beside it, and nothing is cut before it is done.
    hashing = packing.pool.submit(_hashes, path, entry, packing)
    for number in reversed(range(-(-entry.kept_bytes // packing.sizes.segment_bytes))):
        start = number * packing.sizes.segment_bytes
        name = f"{entry.name}{SUFFIX}{start}"
        stored_bytes = _write_segment(
            folder / name, partial(pieces, path, start, entry.kept_bytes, packing.sizes), packing
        )
        try:
            before = hashing.result()
        except (DamagedError, OSError):
            (folder / name).unlink()
            raise
        segment = Segment(name, start, stored_bytes, before[number])
        entry = replace(entry, kept_bytes=start, segments=(segment, *entry.segments))
        layout.restate(folder, entry)
        _cut(path, start)


def _hashes(path: Path, entry: Entry, packing: _Packing) -> list[str]:
    """SHA-256 of all that stands before each segment to be. DamagedError where the file is not as it was saved."""
    sha256 = hashlib.sha256()
    before, position = [], 0
    for piece in pieces(path, 0, entry.kept_bytes, packing.sizes):
        if position % packing.sizes.segment_bytes == 0:
            before.append(sha256.hexdigest())
        sha256.update(piece)
        position += len(piece)
    if sha256.hexdigest() != (entry.segments[0].sha256_before if entry.segments else entry.sha256):
        raise DamagedError(f"{entry.name} does not match its SHA-256")
    return before


def _write_segment(path: Path, content: Callable[[], Iterator[bytes]], packing: _Packing) -> int:
    """Write what `content` gives as a segment, durable and compared with them; its bytes. None where it fails."""
    try:
        with open(path, "wb") as file:
            file.write(MAGIC)
            file.writelines(
                LENGTH.pack(len(record)) + record for record in in_order(packing.pool, planes.pack, content())
            )
            file.write(LENGTH.pack(0))
            file.flush()
            os.fsync(file.fileno())
        for found, piece in zip(unpacked(path, packing.pool), content(), strict=True):
            if found != piece:
                raise ValueError("a piece differs")
            packing.on_read(len(piece))
        _sync_names(path.parent)
        return path.stat().st_size
    except ValueError as error:
        path.unlink()
        raise DamagedError(f"{path.name} does not read back as it was written: {error}") from None
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _restore_file(folder: Path, entry: Entry, pool: ThreadPoolExecutor, on_read: Read) -> None:
    """From the beginning to the end, segment by segment, removing what is restored."""
    path = folder / entry.name
    sha256 = hashlib.sha256()
    for piece in head(path, entry.kept_bytes):
        sha256.update(piece)
    while entry.segments:
        segment, *rest = entry.segments
        try:
            _append(path, unpacked(folder / segment.file, pool), sha256, on_read)
            if sha256.hexdigest() != (rest[0].sha256_before if rest else entry.sha256):
                raise ValueError("it does not match its SHA-256")
        except ValueError as error:
            _cut(path, segment.start)
            raise DamagedError(f"{segment.file} does not unpack: {error}") from None
        except OSError:
            _cut(path, segment.start)
            raise
        _sync_names(path.parent)
        entry = replace(entry, kept_bytes=rest[0].start if rest else entry.size_bytes, segments=tuple(rest))
        layout.restate(folder, entry)
        (folder / segment.file).unlink()


def _append(path: Path, pieces: Iterator[bytearray], sha256: hashlib._Hash, on_read: Read) -> None:
    """Add `pieces` to the file and to the hash of its content; durable when this returns."""
    with open(path, "ab") as file:
        for piece in pieces:
            file.write(piece)
            sha256.update(piece)
            on_read(len(piece))
        file.flush()
        os.fsync(file.fileno())


def _clear(folder: Path) -> None:
    """Remove what a kill left over: what the manifest does not name, and heads longer than it says."""
    entries = layout.entries(folder)
    for entry in entries:
        if differs := difference(folder, entry):
            raise DamagedError(differs)
    for left in leftovers(folder):
        left.unlink()
    for entry in entries:
        if entry.segments:
            _cut(folder / entry.name, entry.kept_bytes)


def _cut(path: Path, size_bytes: int) -> None:
    """Leave the first `size_bytes` of a file; no file where that is nothing."""
    if not size_bytes:
        path.unlink(missing_ok=True)
    elif path.stat().st_size > size_bytes:
        os.truncate(path, size_bytes)


def _sync_names(directory: Path) -> None:
    """Make the names in a directory durable."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _disk_told(folder: Path) -> Iterator[None]:
    """A full disk as an error that a user can act on. What was packed or restored so far stays so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free_bytes = shutil.disk_usage(folder).free
        raise UserError(
            what=f"{folder.name} could not be gone on with: {error.strerror}",
            where=str(folder),
            why=f"one segment at a time needs {format_bytes(DEFAULT.segment_bytes)} beside the checkpoint, "
            f"and the disk has {format_bytes(free_bytes)} free; the checkpoint is as complete as before",
            fix="free space and give the same command again: it goes on where it stood",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from error
