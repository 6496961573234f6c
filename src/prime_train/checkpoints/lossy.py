"""Finds AdamW's moments in a checkpoint and reads its files with the moments rounded to bf16. Changes no file.

Each fp32 number becomes the nearest number that bf16 can hold, and stays 4 bytes wide: its two low bytes are zero and
take almost no space when packed. The file keeps its layout, so every reader of the checkpoint still works. Rounding
twice gives the same result as rounding once. Therefore a kill at any moment is harmless: a partly rounded file can
always be rounded to its end.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from prime_train.checkpoints.planes import missing_package

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
    return edits[
        max(0, bisect_right(edits, start, key=itemgetter(0)) - 1) : bisect_left(edits, stop, key=itemgetter(0))
    ]


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
    first, last = edits.number_start(start), edits.number_end(stop)
    return edits.apply(os.pread(descriptor, last - first, first), first)[start - first : stop - first]


def round_to_bf16(numbers: bytes) -> bytes:
    """Little-endian fp32 numbers, each rounded to the nearest bf16 number, ties to even.

    NaN stays NaN, and infinity stays infinity. UserError where NumPy is missing.
    """
    np = _numpy()
    bits = np.frombuffer(numbers, "<u4")
    nearest = bits >> 16
    nearest &= 1
    nearest += 0x7FFF
    nearest += bits
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
