"""Packs the files of complete checkpoints and restores them; a kill loses nothing. Decides nothing.

Each step leaves a complete checkpoint. A segment is written, synced to the disk, unpacked and compared with the file
before the manifest names it. Only then is the part of the file that it replaces cut off. Restoring does the reverse.
Files that a killed call left are not in the manifest; the next call deletes them. The caller makes sure that no other
process writes or loads the checkpoint meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import lossy, packed, packing_plan, segments
from prime_train.checkpoints.packing.lossy import NO_EDITS, Edits
from prime_train.checkpoints.packing.packed import ManifestEntry, PackedSegment, Read, read_head
from prime_train.checkpoints.packing.packing_plan import DEFAULT, Sizes, list_leftovers, list_to_pack
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError, explain_disk_error
from prime_train.core.rundir import sync
from prime_train.core.units import format_bytes

_HASHED_BYTES = 2**20  # read at a time: what fits a core's cache
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class DamagedError(Exception):
    """The bytes of a checkpoint are not those that were saved. The checkpoint was not changed."""


def compress(folder: Path, sizes: Sizes = DEFAULT, on_read: Read = lambda _: None) -> None:
    """Pack every file of a complete checkpoint, or go on with it. DamagedError; UserError where the disk is full."""
    with _start_work(folder) as pool:
        for entry in list_to_pack(folder, sizes):
            _pack_file(folder, entry, _Packing(pool, sizes, on_read))


def compress_lossy(folder: Path, sizes: Sizes = DEFAULT, on_read: Read = lambda _: None) -> None:
    """Pack a complete checkpoint as `compress` does, with AdamW's moments rounded to bf16. The rest keeps its bits.

    Once a part of a file is packed, the manifest holds the edits of the head, and the hash of the rounded file. Files
    that are packed without loss are restored first. UserError where no moments are found.
    """
    # A packed part cannot be rounded, so such files are restored before.
    with _start_work(folder) as pool:
        for entry in packing_plan.list_to_restore(folder, sizes):
            _restore_file(folder, entry, pool, on_read)
        found = packing_plan.find_edits(folder, sizes)
        for entry in list_to_pack(folder, sizes):
            edited = _add_edits(folder, entry, found[entry.name]) if entry.name in found else entry
            _pack_file(folder, edited, _Packing(pool, sizes, on_read))


def restore(folder: Path, on_read: Read = lambda _: None, sizes: Sizes = DEFAULT) -> None:
    """Restore every file of a packed checkpoint, or go on with it. DamagedError; UserError where the disk is full."""
    with _start_work(folder) as pool:
        for entry in layout.entries(folder):
            if entry.segments:
                whole = _pack_file(folder, entry, _Packing(pool, sizes, lambda _: None)) if entry.edits else entry
                _restore_file(folder, whole, pool, on_read)


@dataclass(frozen=True, slots=True)
class _Packing:
    pool: ThreadPoolExecutor
    sizes: Sizes
    on_read: Read


def _add_edits(folder: Path, entry: ManifestEntry, edits: Edits) -> ManifestEntry:
    """The manifest entry of an unpacked file with `edits`. DamagedError where the file is not as it was saved."""
    if _hash(read_head(folder, entry.name, entry.size_bytes)).hexdigest() != entry.sha256:
        raise DamagedError(f"{entry.name} does not match its SHA-256")
    after = _hash(read_head(folder, entry.name, entry.size_bytes, edits)).hexdigest()
    return entry._replace(sha256=after, sha256_as_saved=entry.sha256, edits=edits)


def _hash(pieces: Iterator[bytes]) -> hashlib._Hash:
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    return sha256


def _pack_file(folder: Path, entry: ManifestEntry, packing: _Packing) -> ManifestEntry:
    """Pack a file from its end, segment by segment, and cut off each packed part; returns the file's new entry."""
    path = folder / entry.name
    starts = _segment_starts(entry, packing.sizes.segment_bytes)
    with outside.open_regular(path, folder) as file, ThreadPoolExecutor(1, thread_name_prefix="hash") as aside:
        # One thread hashes while the last segment is packed; nothing is cut before the hashing is done.
        hashing = aside.submit(_hash_prefixes, file.fileno(), entry, starts)
        for number in reversed(range(len(starts))):
            name = f"{entry.name}{packed.SUFFIX}{starts[number]}"
            part = segments.FilePart(file.fileno(), starts[number], entry.kept_bytes, entry.edits)
            stored_bytes = _write_segment(folder / name, part, packing)
            try:
                before = hashing.result()
            except (DamagedError, OSError):
                (folder / name).unlink()
                raise
            segment = PackedSegment(name, part.start, stored_bytes, before[number])
            edits = entry.edits if part.start else NO_EDITS
            entry = entry._replace(kept_bytes=part.start, segments=(segment, *entry.segments), edits=edits)
            # In this order: after a kill between the two, some bytes are there twice, and none is lost.
            layout.update_entry(folder, entry)
            _cut(path, part.start)
    return entry


def _segment_starts(entry: ManifestEntry, segment_bytes: int) -> list[int]:
    """The first byte of each new segment. Only the first is short: the last must keep the pool busy during hashing."""
    whole = range(entry.kept_bytes - segment_bytes, 0, -segment_bytes)
    return [0, *(entry.edits.number_start(start) for start in reversed(whole))]


def _hash_prefixes(descriptor: int, entry: ManifestEntry, starts: list[int]) -> list[str]:
    """SHA-256 of the bytes before each new segment. DamagedError where the file is not as it was saved."""
    sha256 = hashlib.sha256()
    before = []
    for start, stop in pairwise([*starts, entry.kept_bytes]):
        before.append(sha256.hexdigest())
        for position in range(start, stop, _HASHED_BYTES):
            sha256.update(lossy.read(descriptor, position, min(position + _HASHED_BYTES, stop), entry.edits))
    if sha256.hexdigest() != (entry.segments[0].sha256_before if entry.segments else entry.sha256):
        raise DamagedError(f"{entry.name} does not match its SHA-256")
    return before


def _write_segment(path: Path, part: segments.FilePart, packing: _Packing) -> int:
    try:
        return segments.write(path, part, packing.pool, packing.sizes, packing.on_read)
    except ValueError as error:
        raise DamagedError(f"{path.name} could not be packed: {error}") from None


def _restore_file(folder: Path, entry: ManifestEntry, pool: ThreadPoolExecutor, on_read: Read) -> None:
    """Append the segments to the file one by one, and delete each segment once it is restored."""
    path = folder / entry.name
    sha256 = _hash(read_head(folder, entry.name, entry.kept_bytes))
    while entry.segments:
        segment, *rest = entry.segments
        try:
            _append(path, folder, packed.read_segment(folder, segment.file, pool), sha256, on_read)
            if sha256.hexdigest() != (rest[0].sha256_before if rest else entry.sha256):
                raise ValueError("it does not match its SHA-256")
        except (ValueError, OSError) as error:
            # What was appended is not what was saved. The segment stays, so nothing is lost.
            _cut(path, segment.start)
            if isinstance(error, OSError):
                raise
            raise DamagedError(f"{segment.file} does not unpack: {error}") from None
        # The file may have just got its name, which must be on the disk before the segment is deleted.
        sync(path.parent)
        entry = entry._replace(kept_bytes=rest[0].start if rest else entry.size_bytes, segments=tuple(rest))
        layout.update_entry(folder, entry)
        (folder / segment.file).unlink()


def _append(path: Path, folder: Path, pieces: Iterator[bytearray], sha256: hashlib._Hash, on_read: Read) -> None:
    """Append `pieces` to the file and to the hash of its content; the file is on the disk when this returns."""
    is_new = not path.exists()
    with open(path, "xb") if is_new else os.fdopen(outside.open_descriptor(path, folder, os.O_WRONLY), "ab") as file:
        for piece in pieces:
            file.write(piece)
            sha256.update(piece)
            on_read(len(piece))
        file.flush()
        os.fsync(file.fileno())


def clear(folder: Path) -> None:
    """Delete what a killed call left: unnamed files, and ends of long heads. Raises DamagedError and OSError."""
    entries = layout.entries(folder)
    # First of all, so that nothing is deleted from a checkpoint that is not complete.
    for entry in entries:
        if differs := packed.find_size_difference(folder, entry):
            raise DamagedError(differs)
    for left in list_leftovers(folder):
        left.unlink()
    for entry in entries:
        if entry.segments:
            _cut(folder / entry.name, entry.kept_bytes)


def _cut(path: Path, size_bytes: int) -> None:
    """Cut a file to its first `size_bytes`; delete it for 0."""
    if not size_bytes:
        path.unlink(missing_ok=True)
    elif path.stat().st_size > size_bytes:
        os.truncate(path, size_bytes)


@contextmanager
def _start_work(folder: Path) -> Iterator[ThreadPoolExecutor]:
    """Clear what a killed call left; yields the threads. A full disk becomes a UserError: what is done so far stays."""
    clear(folder)
    try:
        with packed.start_pool() as pool:
            yield pool
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free_bytes = shutil.disk_usage(folder).free
        found = explain_disk_error(error.errno or 0, folder)
        raise UserError(
            what=f"the work on {folder.name} stopped: {error.strerror}: {found.what}",
            where=str(folder),
            why=f"one segment at a time needs {format_bytes(DEFAULT.segment_bytes)} beside the checkpoint, "
            f"and the disk has {format_bytes(free_bytes)} free; the checkpoint is as complete as before",
            fix=f"{found.fix}; then run the same command again: it continues where it stopped",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from error


def keep_freed_memory() -> None:
    """Have glibc keep freed memory: faulting it in again took a tenth of the CPU time (mallopt(3))."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**28)
        mallopt(_M_MMAP_THRESHOLD, 2**25)
