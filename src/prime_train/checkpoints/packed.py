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
from pathlib import Path
from typing import Any, TypeVar

from prime_train.checkpoints import planes

MAGIC = b"PTPLANE1"
LENGTH = struct.Struct("<I")  # bytes of the packed piece that follows; 0 ends the segment
_READ_BYTES = 8 * 2**20
_AHEAD = 4  # pieces in work per thread: enough that none waits for the slowest

Piece = TypeVar("Piece", bytes, bytearray)
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
    """What the manifest says of one file: its size and hash as it was saved, and how it is stored."""

    name: str
    size_bytes: int
    sha256: str
    kept_bytes: int  # the head that is stored as it is; all of it where nothing is packed
    segments: tuple[Segment, ...] = ()  # by start, the first at kept_bytes, the last to the end of the file

    @property
    def stored_bytes(self) -> int:
        return self.kept_bytes + sum(segment.stored_bytes for segment in self.segments)

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"bytes": self.size_bytes, "sha256": self.sha256}
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
    packed = raw.get("packed")
    if packed is None:
        return Entry(name, size_bytes, sha256, size_bytes)
    segments = tuple(
        Segment(str(s["file"]), int(s["start"]), int(s["bytes"]), str(s["sha256_before"])) for s in packed["segments"]
    )
    return Entry(name, size_bytes, sha256, int(packed["kept_bytes"]), segments)


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
        for piece in head(folder / entry.name, entry.kept_bytes):
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


def head(path: Path, size_bytes: int) -> Iterator[bytes]:
    """The first `size_bytes` of a file, in pieces, fewer where it is shorter; it is not opened for none."""
    if not size_bytes:
        return
    with open(path, "rb") as file:
        left = size_bytes
        while left:
            piece = file.read(min(left, _READ_BYTES))
            if not piece:
                return
            left -= len(piece)
            yield piece


def unpacked(path: Path, pool: ThreadPoolExecutor) -> Iterator[bytearray]:
    """The pieces of a segment as they were before, in order. ValueError where it is damaged."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin as a segment does")
        yield from in_order(pool, planes.unpack, _records(file.read))


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


def in_order(pool: ThreadPoolExecutor, work: Callable[[bytes], Piece], pieces: Iterable[bytes]) -> Iterator[Piece]:
    """`work` of each piece, in their order, with a bounded number in work at a time."""
    waiting: deque[Future[Piece]] = deque()
    try:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
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
