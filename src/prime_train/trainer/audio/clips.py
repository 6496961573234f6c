"""Reads a crop of a compressed clip at one sample rate: seeks, decodes only the crop, and resamples it.

libsndfile decodes WAV, FLAC, Ogg (Vorbis, Opus) and MP3. The same bytes and place always give the same crop. After a
seek it equals that part of the whole decoded clip for WAV, FLAC and Vorbis. MP3 and Opus carry a state from frame to
frame, so they may differ a little: docs/audio.md has by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import soundfile
import soxr

from prime_train.trainer.audio.log_mel import Floats

MOST_RATE = 768_000  # Hz; a header with more is no recording
MOST_CHANNELS = 64
MOST_BYTES = 2**31 - 1  # of one clip, as Arrow's offsets of 32 bits have it
_MARGIN_S = 0.01  # the resampler's filter looks so far beyond the crop


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


def read_info(content: bytes | memoryview) -> ClipInfo:
    """The header of a clip. Raises ClipError."""
    with _open(content) as clip:
        return _judge(clip)


def read_crop(content: bytes | memoryview, rate: int, samples: int, where: float) -> Floats:
    """Mono samples (N,) with N <= samples, at `rate` Hz. Raises ClipError.

    `where`: 0 to 1, the place of the crop between the begin and the end of the clip. A clip that is shorter than the
    crop is returned as a whole.
    """
    with _open(content) as clip:
        info = _judge(clip)
        wanted = samples if info.rate == rate else math.ceil((samples / rate + _MARGIN_S) * info.rate)
        begin = int(where * (max(0, info.frames - wanted) + 1)) if where < 1 else max(0, info.frames - wanted)
        try:
            clip.seek(begin)
            found = clip.read(min(wanted, info.frames), dtype="float32", always_2d=True)  # (n, channels)
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


def _open(content: bytes | memoryview) -> soundfile.SoundFile:
    if not len(content):
        raise ClipError("it has no bytes")
    if len(content) > MOST_BYTES:
        raise ClipError(f"it has {len(content):,} bytes, more than {MOST_BYTES:,}")
    try:
        # Not BytesIO, which copies the whole clip: this one reads from the map, so a crop costs the pages around it.
        return soundfile.SoundFile(pa.BufferReader(content))
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as error:
        raise ClipError(f"it cannot be opened: {_first_line(error)}") from error


def _judge(clip: soundfile.SoundFile) -> ClipInfo:
    """The header, with bounds, so that no number in it takes memory or divides by zero."""
    info = ClipInfo(clip.samplerate, clip.channels, clip.frames, f"{clip.format}/{clip.subtype}")
    if not 0 < info.rate <= MOST_RATE:
        raise ClipError(f"its sample rate is {info.rate} Hz")
    if not 0 < info.channels <= MOST_CHANNELS:
        raise ClipError(f"it has {info.channels} channels")
    if info.frames <= 0:
        raise ClipError("it has no samples")
    return info


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    # libsndfile names the object that it was given, which has an address.
    return (text[0].partition(": ")[2] or text[0])[:200] if text else type(error).__name__
