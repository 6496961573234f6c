"""Packs a piece of a checkpoint without loss: byte planes, each packed by zstd. No I/O, no torch.

The low bytes of a tensor's numbers are noise, and the bytes with the exponent are similar. In planes (first all lowest
bytes, then all second bytes ...) the similar bytes are together, so zstd's entropy coder can pack them; a plane of
noise is stored as it is. The width of the numbers is found by trying, so any file can be packed. A tensor may start at
any offset: this only changes the order of its planes.
"""

from __future__ import annotations

import struct
import sys
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command

WIDTHS = (1, 4, 8)  # bytes of one number: text and flags, fp32 and bf16, fp64 and int64
_SAMPLE_BYTES = 4 * 2**10  # a multiple of every width
_POOR_RATIO = 0.92  # a sample that packs to more than this part of its size has another width
_LARGEST_BYTES = 2**26  # of a piece; limits the memory that a damaged head can request
_HEAD = struct.Struct("<BI")  # width, bytes of the piece
HEAD_BYTES = _HEAD.size
_LENGTH = struct.Struct("<I")  # stored bytes of one plane
_of_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Packed:
    """The planes of a piece, and the parts of its packed form, in order."""

    planes: tuple[bytes, ...]
    parts: tuple[bytes, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(map(len, self.parts))

    def is_in(self, block: bytes, position: int) -> bool:
        """Whether `block` from `position` on unpacks to the piece, plane by plane, which is faster. ValueError."""
        if _HEAD.unpack_from(block, position) != (len(self.planes), sum(map(len, self.planes))):
            return False
        position += _HEAD.size
        for plane in self.planes:
            (stored_bytes,) = _LENGTH.unpack_from(block, position)
            position += _LENGTH.size
            stored_whole = stored_bytes == len(plane)
            if stored_whole and not block.startswith(plane, position):
                return False
            if not stored_whole and _plane(block[position : position + stored_bytes], len(plane)) != plane:
                return False
            position += stored_bytes
        return True


def pack_planes(piece: bytes) -> Packed:
    """`piece` packed. Where nothing can be packed, the result is longer than `piece` only by its heads."""
    width = _width_of(piece)
    planes = tuple(piece[number::width] for number in range(width))
    parts = [_HEAD.pack(width, len(piece))]
    for plane in planes:
        # Tried for each plane: noise grows when it is packed.
        small = _compress(plane)
        stored = small if len(small) < len(plane) else plane
        parts += (_LENGTH.pack(len(stored)), stored)
    return Packed(planes, tuple(parts))


def pack(piece: bytes) -> bytes:
    """`piece` as packed bytes; `unpack` reverses it."""
    return b"".join(pack_planes(piece).parts)


def unpacked_bytes(head: bytes) -> int:
    """Bytes of the piece whose packed form starts with `head`. ValueError where it is damaged."""
    try:
        return int(_HEAD.unpack(head)[1])
    except struct.error as error:
        raise ValueError(f"it ends early: {error}") from None


def unpack(packed: bytes) -> bytearray:
    """The piece from which `pack` made `packed`. ValueError where `packed` is damaged."""
    try:
        width, size = _HEAD.unpack_from(packed)
        # A damaged head may name any numbers, and memory is reserved by them.
        if width not in WIDTHS:
            raise ValueError(f"{width} is not a valid width of a number")
        if size > _LARGEST_BYTES:
            raise ValueError(f"a piece of {size} bytes is larger than the limit of {_LARGEST_BYTES}")
        piece, position = bytearray(size), _HEAD.size
        for number in range(width):
            (stored_bytes,) = _LENGTH.unpack_from(packed, position)
            position += _LENGTH.size + stored_bytes
            stored = packed[position - stored_bytes : position]
            piece[number::width] = _plane(stored, len(range(number, size, width)))
    except struct.error as error:
        raise ValueError(f"it ends early: {error}") from None
    # Bytes behind the last plane mean that one of the lengths is wrong.
    if position != len(packed):
        raise ValueError(f"{len(packed) - position} bytes follow its end")
    return piece


def _plane(stored: bytes, plane_bytes: int) -> bytes:
    if len(stored) == plane_bytes:
        return stored
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    try:
        plane: bytes = decompressor.decompress(stored, plane_bytes + 1)  # limits the memory for damaged data
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None
    if len(plane) != plane_bytes or not decompressor.eof:
        raise ValueError(f"a plane has {len(plane)} of {plane_bytes} bytes")
    return plane


def _width_of(piece: bytes) -> int:
    """The width at which a sample from the middle of `piece` packs best; 8 is tried only where 1 and 4 pack poorly.

    Numbers of 2 bytes pack as well at width 4 as at width 2: the planes come in similar pairs.
    """
    sample = piece[len(piece) // 2 :][:_SAMPLE_BYTES]
    sizes = {width: _packed_bytes(sample, width) for width in (4, 1)}
    if min(sizes.values()) > _POOR_RATIO * len(sample):
        sizes[8] = _packed_bytes(sample, 8)
    return min(sizes, key=sizes.__getitem__)


def _packed_bytes(sample: bytes, width: int) -> int:
    return sum(len(_compress(sample[number::width])) for number in range(width))


def _compress(plane: bytes) -> bytes:
    compressor = _compressor()
    packed: bytes = compressor.compress(plane, mode=compressor.FLUSH_FRAME)
    return packed


def _compressor() -> Any:
    """This thread's compressor, kept because creating one takes longer than packing a small plane.

    The options suit exponents, in which matches are rare. Measured on fp32 weights and moments of 45 M parameters:
    plain level 1 saves 15.9 % at 710 MB/s per core, these options 16.4 % at 910 MB/s, level 6 16.2 % at 200 MB/s.
    """
    # One for each thread, because a compressor packs one plane at a time.
    if not hasattr(_of_thread, "compressor"):
        zstd = _zstd()
        name = zstd.CompressionParameter
        options = {name.compression_level: 1, name.hash_log: 12, name.min_match: 7}
        _of_thread.compressor = zstd.ZstdCompressor(options=options)
    return _of_thread.compressor


@cache
def _zstd() -> Any:
    """The zstd module of the standard library (Python 3.14), or its backport for earlier versions."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ModuleNotFoundError as error:
        raise missing_package("backports.zstd", "checkpoints are packed and unpacked with it", "compress") from error
    return zstd


def missing_package(name: str, why: str, extra: str) -> UserError:
    what, fix = f"the package {name} is missing", install_command(extra)
    return UserError(what, sys.executable, why, fix, ExitCode.OUT_OF_REACH)
