"""Writes one segment: packs part of a file, reads the segment back, compares, and syncs it. Never cuts the file.

The slow steps run in parallel: threads read and pack, the caller writes and compares, and another thread syncs what is
written. A single sync at the end would make all of them wait for the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prime_train.checkpoints.packing import lossy, planes
from prime_train.checkpoints.packing.lossy import Edits
from prime_train.checkpoints.packing.packed import LENGTH, MAGIC, Read, map_in_order
from prime_train.checkpoints.packing.packing_plan import Sizes
from prime_train.core.rundir import sync, write_all

_SYNC_EVERY_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes `start` to `stop` of an open file, with its edits."""

    descriptor: int
    start: int
    stop: int
    edits: Edits


def write(path: Path, part: FilePart, pool: ThreadPoolExecutor, sizes: Sizes, on_read: Read) -> int:
    """Write a part as the segment `path`; returns its bytes on the disk. ValueError where they do not read back."""
    try:
        with open(path, "x+b", buffering=0) as file, _background_sync(file.fileno()) as sync_up_to:
            position = _append(file.fileno(), 0, MAGIC)
            spans = _spans(part, sizes)
            blocks = map_in_order(pool, lambda span: _pack_span(part, *span, sizes), spans)
            for (start, stop), block in zip(spans, blocks, strict=True):
                position = _append(file.fileno(), position, block)
                sync_up_to(position)
                on_read(stop - start)
            # The end is marked, so that a segment that was cut short is not taken for a shorter one.
            position = _append(file.fileno(), position, LENGTH.pack(0))
        sync(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return position


def _spans(part: FilePart, sizes: Sizes) -> list[tuple[int, int]]:
    """First byte and end of what one thread packs at a time: several pieces, to reduce the overhead per task."""
    step_bytes = sizes.piece_bytes * sizes.pieces_together
    return [(start, min(start + step_bytes, part.stop)) for start in range(part.start, part.stop, step_bytes)]


def _pack_span(part: FilePart, start: int, stop: int, sizes: Sizes) -> bytes:
    """The packed records of a span, after a check that they unpack to the same bytes."""
    content = lossy.read(part.descriptor, start, stop, part.edits)
    # The file may have been cut by another process since its size was read.
    if len(content) != stop - start:
        raise ValueError(f"the file ends at byte {start + len(content)}")
    records = [
        planes.pack_planes(content[offset : offset + sizes.piece_bytes])
        for offset in range(0, len(content), sizes.piece_bytes)
    ]
    block = b"".join(part for record in records for part in (LENGTH.pack(record.stored_bytes), *record.parts))
    position = 0
    for record in records:
        position += LENGTH.size
        if not record.is_in(block, position):
            raise ValueError(f"the piece at byte {start} or after it does not unpack to the same bytes")
        position += record.stored_bytes
    return block


def _append(descriptor: int, position: int, block: bytes) -> int:
    """Write a block at `position`, the end of the file, and compare it; returns the new end."""
    write_all(descriptor, block)
    # The original is cut off once this segment is named, so no byte of it is taken on trust.
    if os.pread(descriptor, len(block), position) != block:
        raise ValueError(f"the bytes from {position} on do not read back as they were written")
    return position + len(block)


@contextmanager
def _background_sync(descriptor: int) -> Iterator[Read]:
    """Yields a function to call with each new end of the file, all of which is on the disk when the block ends.

    The kernel reports a disk error once per open file, so that of a background sync is raised at the end.
    """
    syncs: list[Future[None]] = []
    synced_bytes = 0

    def sync_up_to(position: int) -> None:
        nonlocal synced_bytes
        if position - synced_bytes >= _SYNC_EVERY_BYTES and (not syncs or syncs[-1].done()):
            syncs.append(syncing.submit(os.fdatasync, descriptor))
            synced_bytes = position

    with ThreadPoolExecutor(1, thread_name_prefix="sync") as syncing:
        yield sync_up_to
    for running in syncs:
        running.result()
    os.fsync(descriptor)
