"""Reads a file of a checkpoint that may be partly or completely replaced by packed segments. Writes nothing.

A packed file is a head of `kept_bytes` plain bytes, and segments that hold the rest. The manifest names the segments;
a segment that it does not name is not part of the checkpoint. Packing removes the file from its end, and restoring
appends to its head, so neither needs more free space than one segment.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from prime_train.checkpoints.packing import lossy, planes
from prime_train.checkpoints.packing.lossy import NO_EDITS, Edits, parse_edits
from prime_train.core import outside

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

MAGIC = b"PTPLANE1"
SUFFIX = ".planes."  # between the name of a file and the first byte of its segment
LENGTH = struct.Struct("<I")  # bytes of the packed piece that follows; 0 ends the segment
_READ_BYTES = 2**20  # at a time: fits a core's cache
_AHEAD = 3  # queued portions per thread, so that no thread waits for the slowest one
_BATCH = 4  # records that a thread unpacks at a time

Item = TypeVar("Item")
Done = TypeVar("Done")
Read = Callable[[int], None]  # called with the number of bytes that were just read


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """One packed part of a file, from byte `start` on. `sha256_before`: the hash of the file's bytes before it."""

    file: str  # its name in the checkpoint's folder
    start: int
    stored_bytes: int
    sha256_before: str


class ManifestEntry(NamedTuple):  # thousands are made for a list of checkpoints, which a dataclass takes longer for
    """The size of a file, its hash as it was saved or with rounded moments (`sha256_as_saved`), and how it is kept."""

    name: str
    size_bytes: int
    sha256: str
    kept_bytes: int  # length of the plain head; size_bytes where nothing is packed
    segments: tuple[PackedSegment, ...] = ()  # sorted by start; the first starts at kept_bytes
    sha256_as_saved: str = ""  # "" = nothing was lost
    edits: Edits = NO_EDITS  # to apply to the head, which is still to be packed

    @property
    def stored_bytes(self) -> int:
        return self.kept_bytes + sum(segment.stored_bytes for segment in self.segments)

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"bytes": self.size_bytes, "sha256": self.sha256}
        if self.sha256_as_saved:
            plain["lossy"] = {"moments": "bf16", "sha256_as_saved": self.sha256_as_saved}
            if self.edits:
                plain["lossy"]["edits"] = self.edits.as_json()
        if not self.segments:
            return plain
        segments = [
            {"file": s.file, "start": s.start, "bytes": s.stored_bytes, "sha256_before": s.sha256_before}
            for s in self.segments
        ]
        return plain | {"packed": {"kept_bytes": self.kept_bytes, "segments": segments}}


def parse_entry(name: str, raw: dict[str, Any]) -> ManifestEntry:
    """The entry that `as_json` wrote. KeyError, TypeError or ValueError for anything else, also for unsafe names."""
    size_bytes, sha256 = int(raw["bytes"]), str(raw["sha256"])
    # A manifest may have been downloaded, so nothing of it is used before the checks.
    if fault := outside.name_fault(name):
        raise ValueError(f"it names the file {name[:100]!r}: {fault}")
    if size_bytes >= 0 and "lossy" not in raw and "packed" not in raw:  # as most files are
        return ManifestEntry(name, size_bytes, sha256, size_bytes)
    lost = raw.get("lossy")
    as_saved = str(lost["sha256_as_saved"]) if lost else ""
    edits = parse_edits(lost["edits"]) if lost and "edits" in lost else NO_EDITS
    packed = raw.get("packed", {"kept_bytes": size_bytes, "segments": ()})
    segments = tuple(
        PackedSegment(str(s["file"]), int(s["start"]), int(s["bytes"]), str(s["sha256_before"]))
        for s in packed["segments"]
    )
    entry = ManifestEntry(name, size_bytes, sha256, int(packed["kept_bytes"]), segments, as_saved, edits)
    starts = [segment.start for segment in segments]
    for segment in segments:
        if segment.file != f"{name}{SUFFIX}{segment.start}":
            raise ValueError(f"it names {segment.file[:100]!r} as a packed part of {name}")
    if not 0 <= entry.kept_bytes <= size_bytes or starts != sorted(set(starts)) or any(s < 0 for s in starts):
        raise ValueError(f"the sizes of {name} contradict each other")
    return entry


def find_size_difference(folder: Path, entry: ManifestEntry) -> str:
    """The first file whose size differs from its entry, and how; empty where none does. A head may be too long."""
    expected = {entry.name: entry.kept_bytes} | {segment.file: segment.stored_bytes for segment in entry.segments}
    for name, size_bytes in expected.items():
        try:
            found = outside.stat_regular(folder / name, folder).st_size
        except FileNotFoundError:
            # Packed as a whole, the file itself is gone.
            if name == entry.name and entry.segments and not size_bytes:
                continue
            return f"{name} is missing"
        except OSError as error:
            return f"{name} is unreadable: {error.strerror}"
        # A kill between the manifest and the cut leaves bytes that the segments have too.
        is_longer_head = found > size_bytes and name == entry.name and entry.segments
        if found != size_bytes and not is_longer_head:
            return f"{name} has {found} of {size_bytes} bytes"
    return ""


def find_changed_content(folder: Path, entry: ManifestEntry, on_read: Read) -> str:
    """How the content differs from its SHA-256; empty where it does not. Reads every byte."""
    import hashlib  # lazy, because it loads OpenSSL, and a process that only looks at checkpoints hashes nothing

    sha256 = hashlib.sha256()
    at = entry.name
    try:
        for piece in read_head(folder, entry.name, entry.kept_bytes, entry.edits):
            sha256.update(piece)
            on_read(len(piece))
        with start_pool() as pool:
            for segment in entry.segments:
                at = segment.file
                # The hash is that of the unpacked file, so a fault of packing itself is found as well.
                for restored in read_segment(folder, segment.file, pool):
                    sha256.update(restored)
                on_read(segment.stored_bytes)
    except FileNotFoundError:
        return f"{at} is missing"
    except OSError as error:
        return f"{at} is unreadable: {error.strerror}"
    except ValueError as error:
        return f"{at} does not unpack: {error}"
    return "" if sha256.hexdigest() == entry.sha256 else f"{entry.name} does not match its SHA-256"


def read_head(folder: Path, name: str, size_bytes: int, edits: Edits = NO_EDITS) -> Iterator[bytes]:
    """The first `size_bytes` of a file, in pieces; fewer where it is shorter. For 0 bytes the file need not exist."""
    if not size_bytes:
        return
    with outside.open_regular(folder / name, folder) as file:
        for start in range(0, size_bytes, _READ_BYTES):
            piece = lossy.read(file.fileno(), start, min(start + _READ_BYTES, size_bytes), edits)
            if not piece:
                return
            yield piece


def read_segment(folder: Path, name: str, pool: ThreadPoolExecutor) -> Iterator[bytearray]:
    """The unpacked pieces of a segment, in order. ValueError where it is damaged."""
    with outside.open_regular(folder / name, folder) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it does not start as a segment does")
        for pieces in map_in_order(pool, lambda batch: [*map(planes.unpack, batch)], _batches(_records(file.read))):
            yield from pieces


def _batches(records: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(records, _BATCH)):
        yield batch


def _records(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while True:
        prefix = read(LENGTH.size)
        if len(prefix) < LENGTH.size:
            raise ValueError("it ends before its last piece")
        (size,) = LENGTH.unpack(prefix)
        if not size:
            break
        record = read(size)
        if len(record) < size:
            raise ValueError("it ends within a piece")
        yield record
    if read(1):
        raise ValueError("bytes follow its last piece")


def map_in_order(pool: ThreadPoolExecutor, work: Callable[[Item], Done], items: Iterable[Item]) -> Iterator[Done]:
    """The result of `work` for each item, in the order of the items, with a bounded number in progress."""
    waiting: deque[Future[Done]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            # Bounded, because else all pieces of a segment would be in memory at once.
            if len(waiting) >= _AHEAD * _threads():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def start_pool() -> ThreadPoolExecutor:
    """Threads that pack and unpack: zstd and SHA-256 release the interpreter lock."""
    from concurrent.futures import ThreadPoolExecutor  # lazy, because a process that only looks needs none

    return ThreadPoolExecutor(_threads(), thread_name_prefix="planes")


def _threads() -> int:
    return len(os.sched_getaffinity(0))
