"""Finds AdamW's moments in a checkpoint that torch.distributed.checkpoint wrote. Imports no torch, changes nothing.

Each tensor is a zip file (torch.save); its entry `data/0` holds the numbers uncompressed.
Source: torch/distributed/checkpoint/filesystem.py and torch/serialization.py, torch 2.13.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.checkpoints import dcp
from prime_train.checkpoints.dcp import METADATA, StandIn, UnlikeError
from prime_train.checkpoints.lossy import Edits, read, round_to_bf16
from prime_train.core.errors import UserError

_NAMES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # in the state of torch.optim.AdamW
_LOCAL = struct.Struct("<26xHH")  # header of a zip entry: lengths of name and extra field
_CENTRAL = struct.Struct("<4s12xI8xHHH12x")  # signature, CRC-32; lengths of name, extra field and comment
_DESCRIPTOR = struct.Struct("<4sI")  # signature, CRC-32; follows the numbers
_CRC_AT = 16  # offset in _CENTRAL
_ROUNDED_BYTES = 2**22  # at a time


class MomentTensor(NamedTuple):
    """An fp32 tensor: the file of its zip, the zip's offset and length in bytes, and the count of its numbers."""

    name: str
    file: str
    offset: int
    length: int
    numbers: int


def find_edits(folder: Path, files: Collection[str], *, needed: bool = True) -> dict[str, Edits]:
    """The edits that round the fp32 moments in `files` to bf16, by file name. Reads every moment.

    UserError where the checkpoint has another layout, or where moments are `needed` and none is in fp32.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    patches: dict[str, list[tuple[int, bytes]]] = {}
    try:
        found = [one for one in find_moments((folder / METADATA).read_bytes()) if one.file in files]
        for tensor in sorted(found, key=lambda one: (one.file, one.offset)):
            numbers, checksums = _rounding_of(folder, tensor)
            ranges.setdefault(tensor.file, []).append(numbers)
            patches.setdefault(tensor.file, []).extend(checksums)
    except (UnlikeError, FileNotFoundError, zipfile.BadZipFile, struct.error) as error:
        raise _refusal(folder, f"its moments cannot be found: {error}") from error
    if needed and not ranges:
        raise _refusal(folder, "it holds no moments in fp32")
    return {file: Edits(tuple(spans), tuple(sorted(patches[file]))) for file, spans in ranges.items()}


def find_moments(metadata: bytes) -> Iterator[MomentTensor]:
    """The fp32 moments that `.metadata` names. UnlikeError where it is not as torch writes it."""
    stored, shapes = dcp.entries(metadata)
    try:
        for one in stored:
            if one.name.rpartition(".")[2] not in _NAMES:
                continue
            shape = shapes[one.name].state
            if shape["properties"].state[0].__name__ != "float32":
                continue
            sizes = {_size(chunk.state["offsets"]): _size(chunk.state["sizes"]) for chunk in shape["chunks"]}
            numbers = math.prod(sizes[_size(one.index.state["offset"])])
            yield MomentTensor(one.name, one.file, one.offset, one.length, numbers)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise UnlikeError(f"{METADATA} is not as torch writes it: {error!r}") from error


def _size(size: StandIn) -> tuple[int, ...]:
    return tuple(int(length) for length in size.arguments[0])


def _rounding_of(folder: Path, tensor: MomentTensor) -> tuple[tuple[int, int], list[tuple[int, bytes]]]:
    """First byte and end of the numbers in the file, and patches with the CRC-32 of the rounded numbers."""
    with open(folder / tensor.file, "rb", buffering=0) as file:
        descriptor = file.fileno()
        start, stop, crc, places = _numbers_in(descriptor, tensor)
        after = 0
        for position in range(start, stop, _ROUNDED_BYTES):
            after = zlib.crc32(round_to_bf16(read(descriptor, position, min(position + _ROUNDED_BYTES, stop))), after)
        for place in places:
            if os.pread(descriptor, 4, place) != crc.to_bytes(4, "little"):
                raise UnlikeError(f"{tensor.name}: no checksum at byte {place} of {tensor.file}")
    return (start, stop), [(place, after.to_bytes(4, "little")) for place in places]


def _numbers_in(descriptor: int, tensor: MomentTensor) -> tuple[int, int, int, list[int]]:
    """First byte and end of the numbers in the file, their CRC-32, and the offsets at which it is stored."""
    with zipfile.ZipFile(io.BufferedReader(_Window(descriptor, tensor.offset, tensor.length))) as archive:
        position = tensor.offset + archive.start_dir
        for entry in archive.infolist():
            signature, crc, *lengths = _CENTRAL.unpack(os.pread(descriptor, _CENTRAL.size, position))
            if signature != b"PK\1\2" or crc != entry.CRC:
                raise UnlikeError(f"{tensor.name}: its directory is not where it should be")
            if entry.filename.endswith("/data/0"):
                break
            position += _CENTRAL.size + sum(lengths)
        else:
            raise UnlikeError(f"{tensor.name} has no data/0")
    head_at = tensor.offset + entry.header_offset
    start = head_at + _LOCAL.size + sum(_LOCAL.unpack(os.pread(descriptor, _LOCAL.size, head_at)))
    stop = start + entry.file_size
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != 4 * tensor.numbers:
        raise UnlikeError(f"{tensor.name} has {entry.file_size} bytes for {tensor.numbers} numbers")
    places = [position + _CRC_AT]
    if _DESCRIPTOR.unpack(os.pread(descriptor, _DESCRIPTOR.size, stop)) == (b"PK\7\10", crc):
        places.insert(0, stop + 4)
    return start, stop, crc, places


class _Window(io.RawIOBase):
    """Part of an open file, readable as a file."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor, self._start, self._length, self._position = descriptor, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._length - self._position))
        content = os.pread(self._descriptor, count, self._start + self._position)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def _refusal(folder: Path, what: str) -> UserError:
    return UserError(
        what=f"{folder.name} cannot be packed with moments in bf16: {what}",
        where=str(folder),
        why="only moments that AdamW keeps in fp32 are rounded, and nothing else may change",
        fix="pack it without --moments, which loses nothing",
    )
