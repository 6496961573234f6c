"""A crop is the same part of the clip as after decoding all of it, and no clip of a stranger ends a worker."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.trainer.audio.chirps import CODECS, encode, make_clip
from prime_train.trainer.audio.clips import ClipError, read_crop, read_info

RATE = 32_000


def write(signal: np.ndarray, rate: int = RATE, form: str = "WAV", subtype: str = "PCM_16") -> bytes:
    content = io.BytesIO()
    soundfile.write(content, signal, rate, format=form, subtype=subtype)
    return content.getvalue()


CLIP = make_clip(3, 4.0, RATE, np.random.default_rng(1))


@pytest.mark.parametrize("codec", [*CODECS, "wav"])
@pytest.mark.parametrize("where", [0.0, 0.2, 0.51, 0.999, 1.0])
def test_a_crop_is_a_part_of_the_whole_clip(codec: str, where: float) -> None:
    rate = 48_000 if codec == "opus" else RATE
    content = write(CLIP) if codec == "wav" else encode(CLIP, rate, codec)
    whole, found_rate = soundfile.read(io.BytesIO(content), dtype="float32")
    assert found_rate == rate
    crop = read_crop(content, rate, rate, where)
    begin = min(int(where * (len(whole) - rate + 1)), len(whole) - rate)
    # MP3 decodes a frame from two of its neighbours, in another order after a seek: the last bit may differ.
    most = 1e-6 if codec == "mp3" else 0.0
    assert np.abs(crop - whole[begin : begin + rate]).max() <= most


def test_a_crop_of_low_tones_in_opus_differs_by_rounding_and_is_always_the_same() -> None:
    rate = 48_000
    times_s = np.arange(8 * rate) / rate
    tones = [0.25 * np.sin(100 * np.pi * k * times_s + k) / k for k in range(1, 12)]
    content = encode(np.sum(tones, axis=0).astype(np.float32), rate, "opus")
    whole, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    for where in np.random.default_rng(4).random(12):
        crop = read_crop(content, rate, rate, where)
        begin = int(where * (len(whole) - rate + 1))
        assert np.abs(crop - whole[begin : begin + rate]).max() <= 1e-5
        assert np.array_equal(crop, read_crop(content, rate, rate, where))


def test_channels_are_averaged() -> None:
    both = np.stack([CLIP, -CLIP, CLIP], axis=1)
    crop = read_crop(write(both), RATE, 1000, 0.0)
    np.testing.assert_allclose(crop, CLIP[:1000] / 3, atol=2e-4)
    eight = read_crop(write(np.repeat(CLIP[:, None], 8, axis=1)), RATE, 1000, 0.0)
    np.testing.assert_allclose(eight, CLIP[:1000], atol=2e-4)


def test_another_rate_is_resampled() -> None:
    tone = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(48_000) / 48_000)
    crop = read_crop(write(tone, 48_000), RATE, RATE // 2, 0.25)
    assert len(crop) == RATE // 2
    spectrum = np.abs(np.fft.rfft(crop * np.hanning(len(crop))))
    assert np.argmax(spectrum) * 2 == 1000  # bins of 2 Hz


def test_a_short_clip_is_returned_as_a_whole() -> None:
    assert len(read_crop(write(CLIP[:700]), RATE, 160_000, 0.7)) == 700


def wav_header(rate: int, channels: int) -> bytes:
    body = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    data = b"\0" * 64
    parts = b"fmt " + struct.pack("<I", 16) + body + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="no bytes"),
        pytest.param(b"\0" * 5000, id="zeros"),
        pytest.param(b"OggS" * 100, id="only a name"),
        pytest.param(write(CLIP[:0]), id="no samples"),
        pytest.param(encode(CLIP, RATE, "vorbis")[:200], id="cut in the header"),
        pytest.param(wav_header(0, 1), id="no rate"),
        pytest.param(wav_header(2**31 - 1, 1), id="a rate of 2 GHz"),
        pytest.param(wav_header(32_000, 0), id="no channels"),
        pytest.param(wav_header(32_000, 1000), id="a thousand channels"),
        pytest.param(b'{"bytes": 1}', id="text"),
        pytest.param(wav_header(32_000, 1).replace(b"fmt ", b"xmt "), id="a rate that is absent"),
        pytest.param(wav_header(32_000, 1).replace(b"\x01\x00\x01\x00", b"\x99\x99\x01\x00"), id="an unknown codec"),
        pytest.param(b"\0\0\0 ftypM4A \0\0\0\0" + bytes(5000), id="AAC, which is not read"),
        pytest.param(write(np.full(9000, np.nan), subtype="FLOAT"), id="not finite"),
    ],
)
def test_what_is_no_clip_is_an_error_of_this_clip(content: bytes) -> None:
    with pytest.raises(ClipError):
        read_crop(content, RATE, 1000, 0.5)


def test_a_cut_clip_gives_what_is_left_or_an_error() -> None:
    content = encode(CLIP, RATE, "vorbis")
    for part in (0.3, 0.6, 0.9):
        try:
            crop = read_crop(content[: int(len(content) * part)], RATE, RATE, 0.5)
        except ClipError:
            continue
        assert 0 < len(crop) <= RATE
        assert np.isfinite(crop).all()


CONTENTS = [encode(CLIP[:RATE], RATE, codec) for codec in ("vorbis", "flac", "mp3")] + [write(CLIP[:RATE])]


@settings(max_examples=60)
@given(st.sampled_from(CONTENTS), st.data())
def test_changed_bytes_never_raise_anything_else(content: bytes, data: st.DataObject) -> None:
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 8))):
        changed[data.draw(st.integers(0, min(len(changed) - 1, 400)))] = data.draw(st.integers(0, 255))
    try:
        crop = read_crop(bytes(changed), RATE, 8000, 0.3)
        info = read_info(bytes(changed))
    except ClipError:
        return
    assert len(crop) <= 8000
    assert info.rate > 0
