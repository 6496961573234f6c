"""Reads a crop of a compressed clip at one sample rate: seeks, decodes only the crop, and resamples it.

libsndfile decodes WAV, FLAC, Ogg (Vorbis, Opus) and MP3. The same bytes and place always give the same crop, which
equals that part of the whole decoded clip. MP3 and Opus carry a state from frame to frame, so an exact crop is decoded
from the begin of the clip, a block at a time. A fast one begins with a seek and differs a little: docs/audio.md has by
how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa
import soundfile
import soxr

from prime_train.spec.audio import Seek
from prime_train.trainer.audio.log_mel import Floats

MOST_RATE = 768_000  # Hz; a header with more is no recording
MOST_CHANNELS = 64
MOST_FRAMES = 2**48  # libsndfile before 1.2.2 reports 2**63 - 1 for an Ogg file that is cut off
MOST_BYTES = 2**31 - 1  # of one clip, as Arrow's offsets of 32 bits have it
SEEKS = get_args(Seek)
_MARGIN_S = 0.01  # the resampler's filter looks so far beyond the crop
_PAGE = b"OggS\0"  # the begin of a page
_MOST_PAGE = 65_307  # bytes of a page
_MOST_BLOCK = 8192  # frames of a block of Vorbis, which overlaps the one before
_BLOCK = 2**16  # numbers that are decoded at a time, before a crop that is not reached by a seek
# Codecs that are read after a seek. Any other, some of which have none, is read from the begin.
_WITHOUT_STATE = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS")
_SOUGHT = {"exact": _WITHOUT_STATE, "fast": (*_WITHOUT_STATE, "OPUS", "MPEG_")}


class ClipError(Exception):
    """A clip that cannot be used, and why. It is counted, and another one takes its place."""


@dataclass(frozen=True, slots=True)
class ClipInfo:
    """The header of a clip."""

    rate: int  # Hz
    channels: int
    frames: int
    codec: str  # "OGG/VORBIS"

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


class _Decoder(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """A clip that is read on without a seek.

    The base class seeks to where it is after each read, and so takes the state from a decoder that has one.
    """

    def seekable(self) -> bool:
        return False

    def go_to(self, frame: int) -> None:
        """Seek, in a codec that can."""
        if super().seekable():
            self.seek(frame)


def read_info(content: bytes | memoryview) -> ClipInfo:
    """The header of a clip. Raises ClipError."""
    with _open(content) as clip:
        return _judge(clip)


def read_crop(content: bytes | memoryview, rate: int, samples: int, where: float, seek: Seek = "exact") -> Floats:
    """Mono samples (N,) with N <= samples, at `rate` Hz. Raises ClipError.

    `where`: 0 to 1, the place of the crop between the begin and the end of the clip. A clip that is shorter than the
    crop is returned as a whole. `seek`: "fast" seeks in Opus and MP3 too.
    """
    with _open(content) as clip:
        info = _judge(clip)
        wanted = samples if info.rate == rate else math.ceil((samples / rate + _MARGIN_S) * info.rate)
        begin = int(where * (max(0, info.frames - wanted) + 1)) if where < 1 else max(0, info.frames - wanted)
        try:
            # Also to the begin, as soundfile.read does: the last bits of MP3 depend on whether there was a seek.
            sought = begin if clip.subtype.startswith(_SOUGHT[seek]) else 0
            if clip.subtype == "VORBIS":
                sought = min(sought, _find_last_exact(content, info.frames))
            clip.go_to(sought)
            _skip(clip, begin - sought)
            found = clip.read(min(wanted, info.frames - begin), dtype="float32", always_2d=True)  # (n, channels)
        except (soundfile.LibsndfileError, RuntimeError, ValueError) as error:
            raise ClipError(f"it cannot be decoded: {_first_line(error)}") from error
    if not len(found):
        raise ClipError("nothing of it can be decoded")
    mono = found[:, 0] if found.shape[1] == 1 else found.mean(axis=1, dtype=np.float32)
    if info.rate != rate:
        mono = soxr.resample(mono, info.rate, rate, quality="HQ")
    if not np.isfinite(mono).all():
        raise ClipError("it has samples that are not finite")
    return np.ascontiguousarray(mono[:samples], dtype=np.float32)


def _find_last_exact(content: bytes | memoryview, frames: int) -> int:
    """The last frame to which a seek in an Ogg file is exact.

    libsndfile 1.2.2 counts from the end of the last page back, and the encoder leaves out some frames of that page: a
    seek into it is late by so many. An Ogg page has its last frame in bytes 6 to 13 of the header (RFC 3533).
    """
    tail = bytes(content[-2 * _MOST_PAGE :])
    last = tail.rfind(_PAGE)
    before = tail.rfind(_PAGE, 0, max(0, last))
    if before < 0:
        return 0
    ends = [int.from_bytes(tail[page + 6 : page + 14], "little", signed=True) for page in (before, last)]
    in_last = ends[1] - ends[0]
    return max(0, frames - in_last - _MOST_BLOCK) if 0 < ends[0] <= ends[1] and in_last <= frames else 0


def _skip(clip: _Decoder, frames: int) -> None:
    """Decode and drop so many frames. Stops where nothing more can be decoded."""
    block = np.empty((max(1, _BLOCK // clip.channels), clip.channels), dtype=np.float32)
    while frames > 0 and (found := len(clip.read(frames, out=block))):
        frames -= found


def _open(content: bytes | memoryview) -> _Decoder:
    if not len(content):
        raise ClipError("it has no bytes")
    if len(content) > MOST_BYTES:
        raise ClipError(f"it has {len(content):,} bytes, more than {MOST_BYTES:,}")
    try:
        # Not BytesIO, which copies the whole clip: this one reads from the map, so a crop costs the pages around it.
        return _Decoder(pa.BufferReader(content))
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as error:
        raise ClipError(f"it cannot be opened: {_first_line(error)}") from error


def _judge(clip: _Decoder) -> ClipInfo:
    """The header, with bounds, so that no number in it takes memory or divides by zero."""
    info = ClipInfo(clip.samplerate, clip.channels, clip.frames, f"{clip.format}/{clip.subtype}")
    if not 0 < info.rate <= MOST_RATE:
        raise ClipError(f"its sample rate is {info.rate} Hz")
    if not 0 < info.channels <= MOST_CHANNELS:
        raise ClipError(f"it has {info.channels} channels")
    if info.frames <= 0:
        raise ClipError("it has no samples")
    if info.frames > MOST_FRAMES:
        raise ClipError("it is cut off, so that its length is not known")
    return info


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    # libsndfile names the object that it was given, which has an address.
    return (text[0].partition(": ")[2] or text[0])[:200] if text else type(error).__name__
