"""Reads a file of a checkpoint, whole or in part replaced by packed segments. Writes nothing.

A packed file is its own head, `kept_bytes` long, and segments that hold the rest. The manifest says so, and a
segment it does not name is not part of the checkpoint. Packing takes the file away from its end, restoring
gives it back from its head, so that neither needs more room than one segment.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from prime_train.checkpoints import lossy, planes
from prime_train.checkpoints.lossy import NOTHING, Edits, edits_of

MAGIC = b"PTPLANE1"
LENGTH = struct.Struct("<I")  # bytes of the packed piece that follows; 0 ends the segment
_READ_BYTES = 2**20  # at a time: what fits a core's cache
_AHEAD = 3  # portions in work per thread: enough that none waits for the slowest
_TOGETHER = 4  # records unpacked at a time

Item = TypeVar("Item")
Done = TypeVar("Done")
Read = Callable[[int], None]  # told how many bytes were read, while a large file is


@dataclass(frozen=True, slots=True)
class Segment:
    """One packed part of a file, from byte `start` on. `sha256_before`: of all that the file holds before it."""

    file: str  # in the folder of the checkpoint
    start: int
    stored_bytes: int
    sha256_before: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What the manifest says of one file: its size and hash, and how it is stored.

    The hash is of the file as it was saved, or as it is with its moments rounded, where `sha256_as_saved` is told too.
    """

    name: str
    size_bytes: int
    sha256: str
    kept_bytes: int  # the head that is stored as it is; all of it where nothing is packed
    segments: tuple[Segment, ...] = ()  # by start, the first at kept_bytes, the last to the end of the file
    sha256_as_saved: str = ""  # "" = nothing was lost
    edits: Edits = NOTHING  # by which the head is to be read, while it waits to be packed

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


def entry_of(name: str, raw: dict[str, Any]) -> Entry:
    """The entry of one file. KeyError, TypeError or ValueError where it is not one."""
    size_bytes, sha256 = int(raw["bytes"]), str(raw["sha256"])
    lost = raw.get("lossy")
    as_saved = str(lost["sha256_as_saved"]) if lost else ""
    edits = edits_of(lost["edits"]) if lost and "edits" in lost else NOTHING
    packed = raw.get("packed")
    if packed is None:
        return Entry(name, size_bytes, sha256, size_bytes, (), as_saved, edits)
    segments = tuple(
        Segment(str(s["file"]), int(s["start"]), int(s["bytes"]), str(s["sha256_before"])) for s in packed["segments"]
    )
    return Entry(name, size_bytes, sha256, int(packed["kept_bytes"]), segments, as_saved, edits)


def difference(folder: Path, entry: Entry) -> str:
    """How what is stored differs from the entry by what the directory says; empty where it does not.

    A head may be longer than its entry says: a kill came between the manifest and the cut.
    """
    if not entry.segments or entry.kept_bytes:
        found = _size(folder, entry.name)
        if isinstance(found, str):
            return found
        if found < entry.kept_bytes or (found > entry.kept_bytes and not entry.segments):
            return f"{entry.name} has {found} of {entry.kept_bytes} bytes"
    for segment in entry.segments:
        found = _size(folder, segment.file)
        if isinstance(found, str):
            return found
        if found != segment.stored_bytes:
            return f"{segment.file} has {found} of {segment.stored_bytes} bytes"
    return ""


def changed(folder: Path, entry: Entry, on_read: Read) -> str:
    """How the content differs from what was saved, by its SHA-256; empty where it does not. Reads every byte."""
    sha256 = hashlib.sha256()
    at = entry.name
    try:
        for piece in head(folder / entry.name, entry.kept_bytes, entry.edits):
            sha256.update(piece)
            on_read(len(piece))
        with workers() as pool:
            for segment in entry.segments:
                at = segment.file
                for restored in unpacked(folder / segment.file, pool):
                    sha256.update(restored)
                on_read(segment.stored_bytes)
    except FileNotFoundError:
        return f"{at} is missing"
    except OSError as error:
        return f"{at} is unreadable: {error.strerror}"
    except ValueError as error:
        return f"{at} does not unpack: {error}"
    return "" if sha256.hexdigest() == entry.sha256 else f"{entry.name} does not match its SHA-256"


def head(path: Path, size_bytes: int, edits: Edits = NOTHING) -> Iterator[bytes]:
    """The first `size_bytes` of a file, in pieces, fewer where it is shorter; it is not opened for none."""
    if not size_bytes:
        return
    with open(path, "rb", buffering=0) as file:
        for start in range(0, size_bytes, _READ_BYTES):
            piece = lossy.read(file.fileno(), start, min(start + _READ_BYTES, size_bytes), edits)
            if not piece:
                return
            yield piece


def unpacked(path: Path, pool: ThreadPoolExecutor) -> Iterator[bytearray]:
    """The pieces of a segment as they were before, in order. ValueError where it is damaged."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin as a segment does")
        for pieces in in_order(pool, _unpack_all, _together(_records(file.read))):
            yield from pieces


def _unpack_all(records: list[bytes]) -> list[bytearray]:
    return [planes.unpack(record) for record in records]


def _together(records: Iterator[bytes]) -> Iterator[list[bytes]]:
    while some := list(islice(records, _TOGETHER)):
        yield some


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


def in_order(pool: ThreadPoolExecutor, work: Callable[[Item], Done], items: Iterable[Item]) -> Iterator[Done]:
    """`work` of each item, in their order, with a bounded number in work at a time."""
    waiting: deque[Future[Done]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= _AHEAD * _threads():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def workers() -> ThreadPoolExecutor:
    """Threads to pack and unpack in; zstd and SHA-256 work without the interpreter's lock."""
    return ThreadPoolExecutor(_threads(), thread_name_prefix="planes")


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def _size(folder: Path, name: str) -> int | str:
    """Bytes of a file, or what is wrong with it."""
    try:
        return (folder / name).stat().st_size
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} is unreadable: {error.strerror}"
