"""Says how the content of a file is changed where moments are rounded to bf16. Pure but for reading the file.

A number in fp32 becomes the nearest one that bf16 can hold, and stays 4 bytes wide: its two low bytes are zero, and
pack to nothing. So a file keeps its layout, and whatever reads the checkpoint reads it as before. To round twice is to
round once: a file of which some part is rounded and some is not has one meaning, that of the rounded one, and a kill
at any moment leaves nothing undecided.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from prime_train.errors import ExitCode, UserError

_NUMBER_BYTES = 4  # fp32


@dataclass(frozen=True, slots=True)
class Edits:
    """What is changed in one file. The value without anything changes nothing."""

    ranges: tuple[tuple[int, int], ...] = ()  # first byte and end of fp32 numbers to round; sorted, apart
    patches: tuple[tuple[int, bytes], ...] = ()  # bytes to be written from an offset on: checksums; sorted, apart

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def snapped(self, position: int) -> int:
        """`position`, or the beginning of the number within which it lies."""
        start, stop = self._range_at(position)
        return position - (position - start) % _NUMBER_BYTES if start < position < stop else position

    def whole(self, position: int) -> int:
        """`position`, or the end of the number within which it lies."""
        before = self.snapped(position)
        return position if before == position else before + _NUMBER_BYTES

    def applied(self, content: bytes, start: int) -> bytes:
        """`content`, which stands in the file from byte `start` on, as it is to be. It cuts no number in two."""
        stop = start + len(content)
        changed = bytearray(content)
        for first in range(max(0, bisect_right(self.ranges, (start,)) - 1), len(self.ranges)):
            low, high = max(start, self.ranges[first][0]), min(stop, self.ranges[first][1])
            if self.ranges[first][0] >= stop:
                break
            if low < high:
                changed[low - start : high - start] = rounded(content[low - start : high - start])
        for first in range(max(0, bisect_right(self.patches, (start,)) - 1), len(self.patches)):
            offset, patch = self.patches[first]
            if offset >= stop:
                break
            low, high = max(start, offset), min(stop, offset + len(patch))
            if low < high:
                changed[low - start : high - start] = patch[low - offset : high - offset]
        return bytes(changed)

    def _range_at(self, position: int) -> tuple[int, int]:
        """The last range that begins at or before `position`; (position, position) where there is none."""
        number = bisect_right(self.ranges, (position, sys.maxsize)) - 1
        return self.ranges[number] if number >= 0 else (position, position)

    def as_json(self) -> dict[str, Any]:
        return {"ranges": [list(one) for one in self.ranges], "patches": [[at, new.hex()] for at, new in self.patches]}


NOTHING = Edits()


def edits_of(raw: dict[str, Any]) -> Edits:
    """What `as_json` wrote. KeyError, TypeError or ValueError where it is something else."""
    return Edits(
        tuple((int(start), int(stop)) for start, stop in raw["ranges"]),
        tuple((int(offset), bytes.fromhex(patch)) for offset, patch in raw["patches"]),
    )


def read(descriptor: int, start: int, stop: int, edits: Edits = NOTHING) -> bytes:
    """Bytes `start` to `stop` of an open file with its edits, fewer where the file ends. Raises OSError."""
    if not edits:
        return os.pread(descriptor, stop - start, start)
    first, last = edits.snapped(start), edits.whole(stop)
    return edits.applied(os.pread(descriptor, last - first, first), first)[start - first : stop - first]


def rounded(numbers: bytes) -> bytes:
    """fp32 numbers, little-endian, each rounded to the nearest that bf16 holds, of two as near the even one.

    What is no number stays none, and infinity stays infinity. UserError where NumPy is missing.
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
        raise UserError(
            what="the package numpy is missing",
            where=sys.executable,
            why="moments are rounded with it",
            fix="pip install 'prime-train[train]'",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from error
    return numpy
