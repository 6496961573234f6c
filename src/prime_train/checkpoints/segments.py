"""Writes one segment: part of a file, packed, compared with what is on the disk, and durable. Cuts nothing off.

What takes time is done side by side: threads read and pack, the caller writes and compares, and what is written is
sent to the disk meanwhile, because a disk that is only told at the end makes everybody wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prime_train.checkpoints import lossy, planes
from prime_train.checkpoints.lossy import Edits
from prime_train.checkpoints.packed import LENGTH, MAGIC, Read, in_order
from prime_train.checkpoints.packing_plan import Sizes

_SYNC_EVERY_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `start` to `stop` of an open file, with its edits."""

    descriptor: int
    start: int
    stop: int
    edits: Edits


def write(path: Path, part: Part, pool: ThreadPoolExecutor, sizes: Sizes, on_read: Read) -> int:
    """Write a part as the segment `path`; its bytes once they are durable. No file is left where it fails.

    ValueError where what was packed or written does not read back as it was.
    """
    try:
        with open(path, "w+b", buffering=0) as file, _sent_to_disk(file.fileno()) as sent:
            position = _append(file.fileno(), 0, MAGIC)
            spans = _spans(part, sizes)
            for (start, stop), block in zip(
                spans, in_order(pool, lambda span: _packed(part, *span, sizes), spans), strict=True
            ):
                position = _append(file.fileno(), position, block)
                sent(position)
                on_read(stop - start)
            position = _append(file.fileno(), position, LENGTH.pack(0))
        sync_names(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return position


def _spans(part: Part, sizes: Sizes) -> list[tuple[int, int]]:
    """What one thread reads and packs at a time: some pieces, for the handing over takes longer than a small one."""
    step_bytes = sizes.piece_bytes * sizes.pieces_together
    return [(start, min(start + step_bytes, part.stop)) for start in range(part.start, part.stop, step_bytes)]


def _packed(part: Part, start: int, stop: int, sizes: Sizes) -> bytes:
    """The records of a span."""
    content = lossy.read(part.descriptor, start, stop, part.edits)
    if len(content) != stop - start:
        raise ValueError(f"the file ends at byte {start + len(content)}")
    records = [
        planes.packed(content[offset : offset + sizes.piece_bytes])
        for offset in range(0, len(content), sizes.piece_bytes)
    ]
    block = b"".join(part for record in records for part in (LENGTH.pack(record.stored_bytes), *record.parts))
    position = 0
    for record in records:
        position += LENGTH.size
        if not record.is_in(block, position):
            raise ValueError(f"byte {start} and what follows does not unpack to what it was")
        position += record.stored_bytes
    return block


def _append(descriptor: int, position: int, block: bytes) -> int:
    """Write a block where the file ends and read it again; where the file ends then."""
    left = memoryview(block)
    while left:
        left = left[os.write(descriptor, left) :]
    if os.pread(descriptor, len(block), position) != block:
        raise ValueError(f"byte {position} and what follows does not read back as it was written")
    return position + len(block)


@contextmanager
def _sent_to_disk(descriptor: int) -> Iterator[Read]:
    """Tell the value how far the file is written; all of it is durable when the block ends without an error.

    A disk tells an error once to each opened file: one that a sync beside the writing met is raised at the end.
    """
    began: list[Future[None]] = []
    sent_bytes = 0

    def sent(position: int) -> None:
        nonlocal sent_bytes
        if position - sent_bytes >= _SYNC_EVERY_BYTES and (not began or began[-1].done()):
            began.append(syncing.submit(os.fdatasync, descriptor))
            sent_bytes = position

    with ThreadPoolExecutor(1, thread_name_prefix="sync") as syncing:
        yield sent
    for sync in began:
        sync.result()
    os.fsync(descriptor)


def sync_names(directory: Path) -> None:
    """Make the names in a directory durable."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
