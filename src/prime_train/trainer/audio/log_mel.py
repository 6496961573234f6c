"""The log-mel spectrogram of a crop, equal to Kaldi's fbank (no dither, no energy, snip_edges). NumPy and SciPy alone.

Kaldi removes the mean of each frame, then emphasises, then multiplies by a window. All three are linear, so the
emphasis is computed once for the signal and the mean is taken away as a multiple of one fixed vector: 3 times faster
than one frame after the other.
Source: Kaldi, feat/feature-window.cc and feat/mel-computations.cc; the same in torchaudio.compliance.kaldi, 2.11.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]

_EMPHASIS = np.float32(0.97)
_LEAST = np.float32(np.finfo(np.float32).eps)  # energy, before the logarithm
_BLOCK_FRAMES = 64  # of 4 KiB each: the block stays in the cache of a core
_BAND_MELS = 16  # multiplied at once: a filter covers a fiftieth of the frequencies
_LOCAL = threading.local()  # a buffer for each thread, because the blocks of two threads are computed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class MelSettings:
    """The shape and the scale of a spectrogram."""

    sample_rate: int = 32_000
    window_ms: float = 25.0
    hop_ms: float = 10.0
    mels: int = 128
    low_hz: float = 20.0
    high_hz: float = 0.0  # 0 or less: so far below half the sample rate
    frames: int = 512  # of a sample; shorter ones are padded with their least value
    mean: float = -7.2  # of log-mels of bird song (BirdSet XCM), by which samples are normalised
    std: float = 4.43

    @property
    def window(self) -> int:
        return round(self.sample_rate * self.window_ms / 1000)

    @property
    def hop(self) -> int:
        return round(self.sample_rate * self.hop_ms / 1000)

    def count_frames(self, samples: int) -> int:
        """The frames that lie inside a signal."""
        return 0 if samples < self.window else 1 + (samples - self.window) // self.hop


class _Band(NamedTuple):
    """Some neighbouring mel filters, and the frequencies that they are made of: all others are zero in them."""

    mels: slice
    frequencies: slice
    filters: Floats  # (frequencies, mels)


@dataclass(frozen=True, slots=True)
class _Tables:
    window: Floats  # (W,)
    mean_response: Floats  # (W,), what a signal of ones becomes
    bands: tuple[_Band, ...]
    padded: int  # length of the FFT


@lru_cache(maxsize=8)
def _tables(settings: MelSettings) -> _Tables:
    width = settings.window
    padded = 1 << (width - 1).bit_length()
    # Kaldi's Hann window ends with zeros on both sides, and it emphasises the first value against itself.
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / (width - 1))).astype(np.float32)
    filters = _mel_filters(settings, padded)
    bands = tuple(_cut_band(filters, first) for first in range(0, settings.mels, _BAND_MELS))
    return _Tables(window, (1 - _EMPHASIS) * window, bands, padded)


def _cut_band(filters: Floats, first: int) -> _Band:
    mels = slice(first, first + _BAND_MELS)
    used = np.flatnonzero(filters[:, mels].any(axis=1))
    frequencies = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 1)
    return _Band(mels, frequencies, np.ascontiguousarray(filters[frequencies, mels]))


def _mel_filters(settings: MelSettings, padded: int) -> Floats:
    """Triangles on the mel scale, (F, M) for F = padded / 2 + 1 frequencies; the last one counts for none."""
    high_hz = settings.high_hz if settings.high_hz > 0 else settings.sample_rate / 2 + settings.high_hz
    low, high = _mel(settings.low_hz), _mel(high_hz)
    step = (high - low) / (settings.mels + 1)
    left = low + step * np.arange(settings.mels)  # (M,)
    at = _mel(settings.sample_rate / padded * np.arange(padded // 2))[:, None]  # (F - 1, 1)
    rising, falling = (at - left) / step, (left + 2 * step - at) / step
    filters = np.maximum(0.0, np.minimum(rising, falling))  # (F - 1, M)
    return np.ascontiguousarray(np.pad(filters, ((0, 1), (0, 0))), dtype=np.float32)


def _mel(hertz: ArrayLike) -> NDArray[np.float64]:
    return 1127.0 * np.log(1.0 + np.asarray(hertz) / 700.0)


def compute_log_mel(signal: Floats, settings: MelSettings) -> Floats:
    """The natural logarithms of mel energies, (frames, M), for a signal (N,) within -1 to 1; no frame if N < window."""
    tables, width = _tables(settings), settings.window
    count = settings.count_frames(len(signal))
    found = np.empty((count, settings.mels), dtype=np.float32)
    if not count:
        return found
    # A constant is in no frame after the mean is removed, but it costs digits until then.
    signal = signal - signal.mean(dtype=np.float64).astype(np.float32)
    emphasised = np.empty_like(signal)
    emphasised[0] = 0  # replaced below: the first value of a frame has no earlier one
    np.multiply(signal[:-1], -_EMPHASIS, out=emphasised[1:])
    emphasised[1:] += signal[1:]
    frames = np.lib.stride_tricks.sliding_window_view(signal, width)[:: settings.hop]  # (frames, W)
    changes = np.lib.stride_tricks.sliding_window_view(emphasised, width)[:: settings.hop]  # (frames, W)
    means = frames.mean(axis=1, dtype=np.float32)  # (frames,)
    block = _take_block(tables.padded, width)
    for begin in range(0, count, _BLOCK_FRAMES):
        end = min(begin + _BLOCK_FRAMES, count)
        windowed = block[: end - begin, :width]
        np.multiply(changes[begin:end], tables.window, out=windowed)
        windowed -= means[begin:end, None] * tables.mean_response
        windowed[:, 0] = (frames[begin:end, 0] - means[begin:end]) * tables.mean_response[0]
        spectrum = scipy.fft.rfft(block[: end - begin])  # (k, F) complex
        parts = spectrum.view(np.float32)
        np.square(parts, out=parts)
        power = parts[:, ::2] + parts[:, 1::2]  # (k, F)
        for band in tables.bands:
            found[begin:end, band.mels] = power[:, band.frequencies] @ band.filters
    np.maximum(found, _LEAST, out=found)
    return np.log(found, out=found)


def _take_block(padded: int, width: int) -> Floats:
    """A buffer of this thread, (block, padded), with zeros behind `width`, the window."""
    block: Floats | None = getattr(_LOCAL, "block", None)
    if block is None or _LOCAL.shape != (padded, width):
        block = _LOCAL.block = np.zeros((_BLOCK_FRAMES, padded), dtype=np.float32)
        # By the width too: a wider window with the same padding leaves values behind it.
        _LOCAL.shape = (padded, width)
    return block


def write_sample(log_mel: Floats, settings: MelSettings, out: Floats) -> int:
    """Pad with the least value and normalise into `out`, (frames, M). Returns the frames that are no padding."""
    count = min(len(log_mel), settings.frames)
    out[:count] = log_mel[:count]
    out[count:] = log_mel[:count].min() if count else np.log(_LEAST)
    out -= np.float32(settings.mean)
    out *= np.float32(1 / (2 * settings.std))
    return count
