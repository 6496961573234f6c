"""Makes clips of twelve classes of chirps, so that a first run on audio needs no download. Deterministic."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import soundfile

from prime_train.core.rundir import make_folder
from prime_train.trainer.audio.log_mel import Floats

CLASSES = 12  # 3 begins of frequency x up or down x slow or fast
CODECS = {"vorbis": ("OGG", "VORBIS"), "flac": ("FLAC", "PCM_16"), "opus": ("OGG", "OPUS"), "mp3": ("MP3", None)}
_VERSION = 1  # of the clips: another one has another file name
_BEGINS_HZ = (1500.0, 3000.0, 6000.0)
_BLOCK = 65_536  # samples: libsndfile 1.2 crashes where it writes a long Vorbis clip at once
_ROWS = 16  # of a record batch


def make_clip(label: int, seconds: float, rate: int, draw: np.random.Generator) -> Floats:
    """A mono clip (N,) with noise and the syllables of one class, within -1 to 1."""
    count = int(seconds * rate)
    spectrum = np.fft.rfft(draw.standard_normal(count))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))  # pink: half the power for twice the frequency
    noise = np.fft.irfft(spectrum, count)
    signal = 0.02 * noise / noise.std()
    kind, begin_hz = divmod(label, len(_BEGINS_HZ))
    low_hz = _BEGINS_HZ[begin_hz] * draw.uniform(0.9, 1.1)
    rises, is_fast = kind % 2 == 0, kind >= 2
    length = int((0.06 if is_fast else 0.25) * rate)
    for _ in range(max(1, int(seconds * (6 if is_fast else 2)))):
        at = int(draw.integers(0, max(1, count - length)))
        time_s = np.arange(length) / rate
        change_hz = (1 if rises else -1) * low_hz * 0.4
        phase = 2 * np.pi * (low_hz * time_s + change_hz * time_s**2 / (2 * length / rate))
        syllable = draw.uniform(0.1, 0.4) * np.hanning(length) * (np.sin(phase) + 0.3 * np.sin(2 * phase))
        signal[at : at + length] += syllable[: count - at]
    clipped: Floats = np.clip(signal, -1, 1).astype(np.float32)
    return clipped


def encode(signal: Floats, rate: int, codec: str) -> bytes:
    """The clip as a file of one of CODECS."""
    container, subtype = CODECS[codec]
    content = io.BytesIO()
    with soundfile.SoundFile(content, "w", rate, 1, format=container, subtype=subtype) as file:
        for begin in range(0, len(signal), _BLOCK):
            file.write(signal[begin : begin + _BLOCK])
    return content.getvalue()


def write_clips(
    folder: Path,
    count: int,
    seconds: float = 8.0,
    rates: Sequence[int] = (32_000,),
    codec: str = "vorbis",
    seed: int = 0,
) -> Path:
    """An Arrow file with `count` clips in the columns audio and label, made once. Returns the path."""
    named = "-".join(map(str, (*rates, codec, count, seconds, seed, _VERSION)))
    path = folder / f"chirps-{named}.arrow"
    if path.is_file():
        return path
    make_folder(folder)
    audio = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("audio", audio), ("label", pa.int64())])
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for first in range(0, count, _ROWS):
            rows = range(first, min(first + _ROWS, count))
            clips = [_make_row(row, seconds, rates[row % len(rates)], codec, seed) for row in rows]
            labels = pa.array([row % CLASSES for row in rows], type=pa.int64())
            writer.write_batch(pa.record_batch([pa.array(clips, type=audio), labels], schema=schema))
    beside.replace(path)
    return path


def _make_row(row: int, seconds: float, rate: int, codec: str, seed: int) -> dict[str, object]:
    draw = np.random.default_rng([seed, row])
    signal = make_clip(row % CLASSES, seconds, rate, draw)
    return {"bytes": encode(signal, rate, codec), "path": f"{row}.{codec}"}
