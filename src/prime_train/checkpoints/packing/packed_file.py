"""Reads a file of a checkpoint at any place, packed or not. Writes nothing, so the checkpoint stays as it is."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from prime_train.checkpoints.packing import lossy, planes
from prime_train.checkpoints.packing.packed import LENGTH, MAGIC, ManifestEntry
from prime_train.core import outside


class _Piece(NamedTuple):
    """One packed record: the first byte of the file that it holds, and its place in the open segment."""

    start: int
    descriptor: int
    position: int
    stored_bytes: int


class PackedFile(io.RawIOBase):
    """The file of a manifest's entry. Keeps the piece with the next byte. ValueError where it does not unpack."""

    def __init__(self, folder: Path, entry: ManifestEntry) -> None:
        self._entry = entry
        self._position = 0
        self._descriptors: list[int] = []
        self._head = self._open(folder, entry.name) if entry.kept_bytes else -1
        self._pieces: list[_Piece] = []
        self._unpacked: tuple[int, bytes] = (-1, b"")  # number of the piece that is kept
        for segment in entry.segments:
            self._add_pieces(self._open(folder, segment.file), segment.start, segment.stored_bytes)

    def _open(self, folder: Path, name: str) -> int:
        descriptor = outside.open_descriptor(folder / name, folder)
        self._descriptors.append(descriptor)
        return descriptor

    def _add_pieces(self, descriptor: int, start: int, stored_bytes: int) -> None:
        """Find the records of a segment by their lengths, without unpacking them."""
        if os.pread(descriptor, len(MAGIC), 0) != MAGIC:
            raise ValueError("a segment does not start as segments do")
        position = len(MAGIC)
        # Only the lengths are read, so opening a large file takes no unpacking.
        while length := _read_length(descriptor, position):
            position += LENGTH.size
            self._pieces.append(_Piece(start, descriptor, position, length))
            start += planes.unpacked_bytes(os.pread(descriptor, planes.HEAD_BYTES, position))
            position += length
            # The manifest has the size, so a length beyond it is a damaged one.
            if position > stored_bytes:
                raise ValueError("a segment ends within a piece")

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # a writable buffer, as RawIOBase has it
        wanted = min(len(view), self._entry.size_bytes - self._position)
        if wanted <= 0:
            return 0
        if self._position < self._entry.kept_bytes:
            stop = min(self._position + wanted, self._entry.kept_bytes)
            content = lossy.read(self._head, self._position, stop, self._entry.edits)
        else:
            content = self._unpack_at(self._position)
        content = content[:wanted]
        view[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _unpack_at(self, position: int) -> bytes:
        number = bisect_right(self._pieces, position, key=lambda piece: piece.start) - 1
        if number < 0:
            raise ValueError(f"no segment holds byte {position}")
        piece = self._pieces[number]
        # The last piece is kept, because a reader asks for the bytes of one piece in many calls.
        if self._unpacked[0] != number:
            packed = os.pread(piece.descriptor, piece.stored_bytes, piece.position)
            self._unpacked = number, bytes(planes.unpack(packed))
        content = self._unpacked[1][position - piece.start :]
        if not content:
            raise ValueError(f"no segment holds byte {position}")
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"a position cannot be negative: {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
        super().close()


def _read_length(descriptor: int, position: int) -> int:
    prefix = os.pread(descriptor, LENGTH.size, position)
    if len(prefix) < LENGTH.size:
        raise ValueError("a segment ends before its last piece")
    (length,) = LENGTH.unpack(prefix)
    return int(length)
