"""Finds AdamW's moments in a checkpoint and reads its files with the moments rounded to bf16. Changes no file.

Each fp32 number becomes the nearest number that bf16 can hold, and stays 4 bytes wide: its two low bytes are zero and
take almost no space when packed. The file keeps its layout, so every reader of the checkpoint still works. Rounding
twice gives the same result as rounding once. Therefore a kill at any moment is harmless: a partly rounded file can
always be rounded to its end.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prime_train.checkpoints import dcp
from prime_train.checkpoints.dcp import METADATA, StandIn, UnlikeError
from prime_train.checkpoints.packing.planes import missing_package
from prime_train.core import outside
from prime_train.core.errors import UserError

_NUMBER_BYTES = 4  # fp32

Change = TypeVar("Change")


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes to one file. An empty value changes nothing."""

    ranges: tuple[tuple[int, int], ...] = ()  # first byte and end of fp32 numbers to round; sorted, disjoint
    patches: tuple[tuple[int, bytes], ...] = ()  # offset and new bytes of checksums; sorted, disjoint

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def number_start(self, position: int) -> int:
        """The first byte of the number that `position` lies inside; `position` itself where it lies inside none."""
        for start, stop in _near(self.ranges, position, position + 1):
            if start < position < stop:
                return position - (position - start) % _NUMBER_BYTES
        return position

    def number_end(self, position: int) -> int:
        """The end of the number that `position` lies inside; `position` itself where it lies inside none."""
        before = self.number_start(position)
        return position if before == position else before + _NUMBER_BYTES

    def apply(self, content: bytes, start: int) -> bytes:
        """`content`, read from byte `start` of the file, with the edits. `content` must not split a number."""
        stop = start + len(content)
        changed = bytearray(content)
        for first, end in _near(self.ranges, start, stop):
            low, high = max(start, first), min(stop, end)
            if low < high:
                changed[low - start : high - start] = round_to_bf16(content[low - start : high - start])
        for offset, patch in _near(self.patches, start, stop):
            low, high = max(start, offset), min(stop, offset + len(patch))
            if low < high:
                changed[low - start : high - start] = patch[low - offset : high - offset]
        return bytes(changed)

    def as_json(self) -> dict[str, Any]:
        return {"ranges": [list(one) for one in self.ranges], "patches": [[at, new.hex()] for at, new in self.patches]}


def _near(edits: tuple[tuple[int, Change], ...], start: int, stop: int) -> tuple[tuple[int, Change], ...]:
    """The edits that start before `stop`, from the last one that starts at or before `start`."""
    first = max(0, bisect_right(edits, start, key=itemgetter(0)) - 1)
    return edits[first : bisect_left(edits, stop, key=itemgetter(0))]


NO_EDITS = Edits()


def parse_edits(raw: dict[str, Any]) -> Edits:
    """The value that `as_json` wrote. KeyError, TypeError or ValueError for anything else."""
    return Edits(
        tuple((int(start), int(stop)) for start, stop in raw["ranges"]),
        tuple((int(offset), bytes.fromhex(patch)) for offset, patch in raw["patches"]),
    )


def read(descriptor: int, start: int, stop: int, edits: Edits = NO_EDITS) -> bytes:
    """Bytes `start` to `stop` of an open file with its edits; fewer at the end of the file. Raises OSError."""
    if not edits:
        return os.pread(descriptor, stop - start, start)
    # Whole numbers are read, because half of one cannot be rounded.
    first, last = edits.number_start(start), edits.number_end(stop)
    return edits.apply(os.pread(descriptor, last - first, first), first)[start - first : stop - first]


def round_to_bf16(numbers: bytes) -> bytes:
    """Little-endian fp32 numbers, each the nearest bf16 number, ties to even. UserError where NumPy is missing."""
    np = _numpy()
    bits = np.frombuffer(numbers, "<u4")
    nearest = bits >> 16
    nearest &= 1
    nearest += 0x7FFF
    nearest += bits
    # Rounding could carry a NaN over into infinity, so it keeps its own bits.
    not_a_number = np.isnan(bits.view("<f4"))
    if not_a_number.any():
        nearest[not_a_number] = bits[not_a_number] | 0x00400000
    nearest &= 0xFFFF0000
    result: bytes = nearest.tobytes()
    return result


def _numpy() -> Any:
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise missing_package("numpy", "moments are rounded with it", "train") from error
    return numpy


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
    """The edits that round the fp32 moments in `files`, by file name. Reads every moment.

    UserError where the checkpoint has another layout, or where moments are `needed` and none is in fp32.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    patches: dict[str, list[tuple[int, bytes]]] = {}
    try:
        found = [one for one in find_moments(dcp.read_metadata(folder)) if one.file in files]
        # In the order of the file, because edits are looked up by bisection.
        for tensor in sorted(found, key=lambda one: (one.file, one.offset)):
            numbers, checksums = _rounding_of(folder, tensor)
            ranges.setdefault(tensor.file, []).append(numbers)
            patches.setdefault(tensor.file, []).extend(checksums)
    except (UnlikeError, FileNotFoundError, outside.OutsideError, zipfile.BadZipFile, struct.error) as error:
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
            # Only fp32 is rounded, so moments in another type keep their bits.
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
    with outside.open_regular(folder / tensor.file, folder) as file:
        descriptor = file.fileno()
        start, stop, crc, places = _numbers_in(descriptor, tensor)
        after = 0
        for position in range(start, stop, _ROUNDED_BYTES):
            after = zlib.crc32(round_to_bf16(read(descriptor, position, min(position + _ROUNDED_BYTES, stop))), after)
        for place in places:
            # A patch at a wrong place would damage the file, so what is there now must be the checksum.
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
    # Numbers that zip has compressed have no places of their own.
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
    why = "only moments that AdamW keeps in fp32 are rounded, and nothing else may change"
    fix = "pack it without --moments, which loses nothing"
    return UserError(f"{folder.name} cannot be packed with moments in bf16: {what}", str(folder), why, fix)
