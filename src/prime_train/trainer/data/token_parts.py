"""Keeps the tokens of documents in a folder that processes share. Never tokenises, never orders.

The folder of a source has these files:
- `00001.tokens`, `00002.tokens`, ...: tokens of documents, appended in the order of their making. A process that writes
  a part has locked it, and starts another one at PART_BYTES. The lock ends with the process, so the part of a dead
  one is continued by another. Parts have no order and need none.
- `index`: one entry for each document: part, place, length and checksum of its tokens. An entry is written after its
  tokens. So after a kill at any moment every entry has its tokens, and only the documents in hand are made again.
- `claims`: an empty file. A lock on one of its bytes is the claim on a few documents by one process.

Nothing is trusted: an entry has a checksum of itself and of its tokens. A damaged document counts as missing, and gets
a new entry when it is made again. Files are read with pread, because a mapped file that was cut kills the reader, and
mapped pages would count as memory of the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_train.core import outside
from prime_train.core.rundir import sync

PART_BYTES = 64 * 2**20
OPEN_PARTS = 128  # descriptors for reading; a process may have 1,024 in all
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})  # a file system without them: all make all
ENTRY = np.dtype([("part", "<u4"), ("start", "<u4"), ("length", "<u4"), ("crc", "<u4"), ("check", "<u4")])

Integers = NDArray[np.int64]
Tokens = NDArray[np.integer]
Entries = NDArray[np.void]  # of ENTRY; part 0 = missing


class TokenParts:
    """The tokens of the documents 0, 1, ... of one source. `kind`: the type of a token."""

    _index = _claims = -1  # descriptors
    _writing: tuple[int, int, int] | None = None  # part, descriptor, bytes

    def __init__(self, folder: Path, kind: type[np.integer]) -> None:
        self._reading: dict[int, int] = {}  # part -> descriptor
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._kind = np.dtype(kind)
        self._pid = os.getpid()
        self._index = _open_own(folder / "index")
        self._claims = _open_own(folder / "claims")

    def __del__(self) -> None:
        """Close the files, because sources may come and go in a process."""
        writing = -1 if self._writing is None else self._writing[1]
        for descriptor in (self._index, self._claims, writing, *self._reading.values()):
            if descriptor >= 0:
                os.close(descriptor)

    def find(self, documents: Integers) -> Entries:
        """The entries of the documents; part = 0 where there is none, or a damaged one."""
        if not len(documents):
            return np.empty(0, dtype=ENTRY)
        size, low, high = ENTRY.itemsize, int(documents.min()), int(documents.max())
        if high - low < 4 * len(documents):
            block = _read(self._index, (high - low + 1) * size, low * size)
            found = np.frombuffer(block, dtype=ENTRY)[documents - low].copy()
        else:
            pieces = [_read(self._index, size, document * size) for document in documents.tolist()]
            found = np.frombuffer(b"".join(pieces), dtype=ENTRY).copy()
        found["part"][found["check"] != _checksum(found, documents)] = 0
        return found

    def read(self, part: int, start: int, length: int) -> Tokens:
        """Tokens of a part; fewer where the file is damaged."""
        descriptor = self._descriptor(part)
        size = self._kind.itemsize
        content = b"" if descriptor is None else os.pread(descriptor, length * size, start * size)
        return np.frombuffer(content[: len(content) // size * size], dtype=self._kind)

    def is_whole(self, entry: Any) -> bool:
        """Whether the tokens of an entry are those that were written."""
        tokens = self.read(int(entry["part"]), int(entry["start"]), int(entry["length"]))
        return bool(len(tokens) == entry["length"] and zlib.crc32(tokens.tobytes()) == entry["crc"])

    def add(self, documents: Integers, tokens: Sequence[Tokens]) -> None:
        """Append the tokens of documents, then write their entries. Raises OSError where the disk cannot take them."""
        self._leave_fork()
        part, descriptor, used = self._writing or self._take_part()
        lengths = np.asarray([len(one) for one in tokens], dtype=np.int64)
        content = [np.ascontiguousarray(one, dtype=self._kind).tobytes() for one in tokens]
        entries = np.zeros(len(documents), dtype=ENTRY)
        entries["part"] = part
        entries["start"] = used // self._kind.itemsize + np.cumsum(lengths) - lengths
        entries["length"] = lengths
        entries["crc"] = [zlib.crc32(one) for one in content]
        entries["check"] = _checksum(entries, documents)
        _write(descriptor, b"".join(content), used)
        for document, entry in zip(documents.tolist(), entries, strict=True):
            _write(self._index, entry.tobytes(), document * ENTRY.itemsize)
        used += sum(map(len, content))
        self._writing = (part, descriptor, used)
        if used >= PART_BYTES:
            os.fsync(descriptor)
            self._writing = None
            os.close(descriptor)

    @contextlib.contextmanager
    def claim(self, documents: Integers) -> Iterator[bool]:
        """Whether this process alone may make these documents until the block ends. Another claimant gets False."""
        self._leave_fork()
        name = hashlib.blake2b(documents.astype(np.int64).tobytes(), digest_size=8).digest()
        place = int.from_bytes(name, "little") >> 2  # an offset of a file has 63 bits
        # A lock of an open file description (fcntl(2)): it excludes other objects of this process too, and one byte of
        # a file may be locked that is not there.
        lock = partial(_lock_byte, self._claims, place)
        try:
            lock(fcntl.F_WRLCK)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                yield False
                return
            if error.errno not in NO_LOCKS:
                raise
        try:
            yield True
        finally:
            with contextlib.suppress(OSError):
                lock(fcntl.F_UNLCK)

    def sync(self) -> None:
        """Bring everything to the disk."""
        for path in (*self.folder.iterdir(), self.folder):
            with contextlib.suppress(FileNotFoundError):  # another process has given its new file a name meanwhile
                sync(path)

    def _take_part(self) -> tuple[int, int, int]:
        """Lock a part that has room and no living writer, or a new one."""
        numbers = sorted(int(path.stem) for path in self.folder.glob("[0-9]*.tokens") if path.stem.isdigit())
        for number in chain(numbers, count(max(numbers, default=0) + 1)):
            flags = os.O_RDWR | os.O_CLOEXEC | (0 if number in numbers else os.O_CREAT)
            with contextlib.suppress(FileNotFoundError):
                descriptor = self._lock_part(self._path(number), flags)
                if descriptor is not None:
                    size = self._kind.itemsize
                    self._writing = (number, descriptor, -(-os.fstat(descriptor).st_size // size) * size)
                    return self._writing
        raise AssertionError("more parts than numbers")

    def _lock_part(self, path: Path, flags: int) -> int | None:
        """The locked descriptor of a part; None where it is full or has a writer."""
        if not flags & os.O_CREAT and path.stat().st_size >= PART_BYTES:
            return None
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_size < PART_BYTES:
                return descriptor
        except BlockingIOError:
            pass
        os.close(descriptor)
        return None

    def _leave_fork(self) -> None:
        """In a forked process, leave the parent its part and open the claims again, because a lock would be of both."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        if self._writing is not None:
            os.close(self._writing[1])
            self._writing = None
        own = _open_own(self.folder / "claims")
        os.close(self._claims)
        self._claims = own

    def _descriptor(self, part: int) -> int | None:
        if part not in self._reading:
            if len(self._reading) >= OPEN_PARTS:
                os.close(self._reading.pop(next(iter(self._reading))))
            try:
                self._reading[part] = outside.open_descriptor(self._path(part), self.folder)
            except OSError:
                return None
        return self._reading[part]

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:05d}.tokens"


def _checksum(entries: Entries, documents: Integers) -> NDArray[np.uint32]:
    """The checksum of each entry: another document or value gives another one, and that of zeros is not zero."""
    mixed = documents.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x27D4EB2F165667C5)
    for name in ("part", "start", "length", "crc"):
        mixed = (mixed ^ entries[name].astype(np.uint64)) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(32)).astype(np.uint32)


def _open_own(path: Path) -> int:
    """A file of the cache, created where there is none. What is no regular file is deleted."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            path.unlink()
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def _read(descriptor: int, count: int, place: int) -> bytes:
    """`count` bytes, with zeros behind the end of the file."""
    return os.pread(descriptor, count, place).ljust(count, b"\0")


def _write(descriptor: int, content: bytes, place: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written


def _lock_byte(descriptor: int, place: int, kind: int) -> None:
    """Lock or unlock one byte, without waiting. Layout: struct flock of 64-bit Linux, fcntl(2)."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("@hhqqi0q", kind, os.SEEK_SET, place, 1, 0))
