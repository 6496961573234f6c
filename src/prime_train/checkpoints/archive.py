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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from prime_train.checkpoints import layout, lossy, packing_plan, segments
from prime_train.checkpoints.lossy import NOTHING, Edits
from prime_train.checkpoints.packed import Entry, Read, Segment, difference, head, unpacked, workers
from prime_train.checkpoints.packing_plan import DEFAULT, SUFFIX, Sizes, leftovers, to_pack
from prime_train.errors import ExitCode, UserError
from prime_train.units import format_bytes

_HASHED_BYTES = 2**20  # read at a time: what fits a core's cache
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


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


def compress_lossy(folder: Path, sizes: Sizes = DEFAULT, on_read: Read = lambda _: None) -> None:
    """Pack a complete checkpoint with AdamW's moments rounded to bf16; weights and all else stay. Else as `compress`.

    What is rounded off is lost. The manifest tells how the head of a file that waits to be packed is to be read, and
    the hash of what the file becomes, as soon as a part of it is packed. What is packed without loss is restored first.
    UserError where no moments are found.
    """
    _clear(folder)
    with workers() as pool, _disk_told(folder):
        for entry in packing_plan.packed_without_loss(folder, sizes):
            _restore_file(folder, entry, pool, on_read)
        found = packing_plan.edits(folder, sizes)
        for entry in to_pack(folder, sizes):
            edited = _edited(folder, entry, found[entry.name]) if entry.name in found else entry
            _pack_file(folder, edited, _Packing(pool, sizes, on_read))


def restore(folder: Path, on_read: Read = lambda _: None, sizes: Sizes = DEFAULT) -> None:
    """Give every file of a packed checkpoint back, byte for byte. DamagedError where a segment does not unpack.

    A file whose moments are in part rounded is packed to its end first. Goes on where an earlier call was killed;
    nothing is done where nothing is packed. UserError where the disk is full.
    """
    _clear(folder)
    with workers() as pool, _disk_told(folder):
        for entry in layout.entries(folder):
            if entry.segments:
                whole = _pack_file(folder, entry, _Packing(pool, sizes, _unheard)) if entry.edits else entry
                _restore_file(folder, whole, pool, on_read)


@dataclass(frozen=True, slots=True)
class _Packing:
    pool: ThreadPoolExecutor
    sizes: Sizes
    on_read: Read


def _unheard(_bytes: int) -> None:
    return


def _edited(folder: Path, entry: Entry, edits: Edits) -> Entry:
    """What the entry of an untouched file becomes by its edits. DamagedError where it is not as it was saved."""
    before, after = hashlib.sha256(), hashlib.sha256()
    for piece in head(folder / entry.name, entry.size_bytes):
        before.update(piece)
    if before.hexdigest() != entry.sha256:
        raise DamagedError(f"{entry.name} does not match its SHA-256")
    for piece in head(folder / entry.name, entry.size_bytes, edits):
        after.update(piece)
    return replace(entry, sha256=after.hexdigest(), sha256_as_saved=entry.sha256, edits=edits)


def _pack_file(folder: Path, entry: Entry, packing: _Packing) -> Entry:
    """From the end to the beginning, segment by segment, cutting off what is packed; how the file is stored then."""
    path = folder / entry.name
    starts = _starts(entry, packing.sizes.segment_bytes)
    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(1, thread_name_prefix="hash") as aside:
        # Hashing is one thread's work: the last segment is packed beside it, and nothing is cut before it is done.
        hashing = aside.submit(_hashes, file.fileno(), entry, starts)
        for number in reversed(range(len(starts))):
            name = f"{entry.name}{SUFFIX}{starts[number]}"
            part = segments.Part(file.fileno(), starts[number], entry.kept_bytes, entry.edits)
            stored_bytes = _write_segment(folder / name, part, packing)
            try:
                before = hashing.result()
            except (DamagedError, OSError):
                (folder / name).unlink()
                raise
            segment = Segment(name, part.start, stored_bytes, before[number])
            entry = replace(
                entry,
                kept_bytes=part.start,
                segments=(segment, *entry.segments),
                edits=entry.edits if part.start else NOTHING,
            )
            layout.restate(folder, entry)
            _cut(path, part.start)
    return entry


def _starts(entry: Entry, segment_bytes: int) -> list[int]:
    """Where the segments to be begin. The first is the one that may be short: the last is packed beside the hashing."""
    whole = range(entry.kept_bytes - segment_bytes, 0, -segment_bytes)
    return [0, *(entry.edits.snapped(start) for start in reversed(whole))]


def _hashes(descriptor: int, entry: Entry, starts: list[int]) -> list[str]:
    """SHA-256 of all that stands before each segment to be. DamagedError where the file is not as it was saved."""
    sha256 = hashlib.sha256()
    before = []
    for start, stop in pairwise([*starts, entry.kept_bytes]):
        before.append(sha256.hexdigest())
        for position in range(start, stop, _HASHED_BYTES):
            sha256.update(lossy.read(descriptor, position, min(position + _HASHED_BYTES, stop), entry.edits))
    if sha256.hexdigest() != (entry.segments[0].sha256_before if entry.segments else entry.sha256):
        raise DamagedError(f"{entry.name} does not match its SHA-256")
    return before


def _write_segment(path: Path, part: segments.Part, packing: _Packing) -> int:
    try:
        return segments.write(path, part, packing.pool, packing.sizes, packing.on_read)
    except ValueError as error:
        raise DamagedError(f"{path.name} could not be packed: {error}") from None


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
        segments.sync_names(path.parent)
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


def keep_freed_memory() -> None:
    """Have glibc keep freed memory: faulting it in again took a tenth of the CPU time (mallopt(3))."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**28)
        mallopt(_M_MMAP_THRESHOLD, 2**25)
