"""A crop is the same part of the clip as after decoding all of it, and no clip of a stranger ends a worker."""

from __future__ import annotations

import io
import struct
import tracemalloc
from functools import cache

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
    assert np.array_equal(crop, whole[begin : begin + rate])


OTHERS = [
    ("WAV", "IMA_ADPCM"),
    ("WAV", "ULAW"),
    ("WAV", "FLOAT"),
    ("WAV", "GSM610"),
    ("AIFF", "PCM_24"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
]
STATEFUL = ("OPUS", "MPEG_LAYER_III")
KIND_RATE = 16_000  # of all codecs alike


def low_tones(count: int, rate: int) -> np.ndarray:
    times_s = np.arange(count) / rate
    return sum(0.25 * np.sin(100 * np.pi * k * times_s + k) / k for k in range(1, 12))  # type: ignore[return-value]


@cache
def make_kind(form: str, subtype: str, channels: int, seed: int, count: int) -> tuple[bytes, np.ndarray]:
    """A clip of chirps, noise or low tones, and all of it decoded, averaged over the channels."""
    draw = np.random.default_rng(seed)
    signals = [low_tones(count, KIND_RATE), 0.2 * draw.standard_normal(count)]
    signals.append(make_clip(seed % 12, count / KIND_RATE, KIND_RATE, draw)[:count])
    sides = [signals[(seed + side) % 3] for side in range(channels)]
    content = write(np.clip(np.stack(sides, axis=1), -1, 1), KIND_RATE, form, subtype)
    whole, _ = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    return content, whole[:, 0] if channels == 1 else whole.mean(axis=1, dtype=np.float32)


def cut(whole: np.ndarray, count: int, where: float) -> np.ndarray:
    begin = int(where * (max(0, len(whole) - count) + 1)) if where < 1 else max(0, len(whole) - count)
    return whole[begin : begin + count]


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(OTHERS),
    channels=st.sampled_from([1, 2]),
    seed=st.integers(0, 3),
    length=st.sampled_from([700, 20_000, 190_000]),
    count=st.sampled_from([400, 16_000]),
    where=st.floats(0, 1),
)
def test_a_crop_is_exact_in_every_codec(
    kind: tuple[str, str], channels: int, seed: int, length: int, count: int, where: float
) -> None:
    channels = 1 if kind[1] == "GSM610" else channels
    content, whole = make_kind(*kind, channels, seed, length)
    crop = read_crop(content, KIND_RATE, count, where)
    assert np.array_equal(crop, cut(whole, count, where))
    fast = read_crop(content, KIND_RATE, count, where, "fast")
    assert len(fast) == len(crop)
    assert np.array_equal(fast, read_crop(content, KIND_RATE, count, where, "fast"))
    if kind[1] not in STATEFUL:
        assert np.array_equal(fast, crop)


@pytest.mark.parametrize("seed", range(4))
def test_a_crop_at_the_end_of_a_clip_in_vorbis_is_exact(seed: int) -> None:
    """A seek into the last page would be late by the frames that the encoder leaves out there."""
    content, whole = make_kind("OGG", "VORBIS", 1 + seed % 2, seed, 190_000)
    for begin in (*range(150_000, 189_600, 997), 189_600):
        where = begin / (len(whole) - 400 + 1) + 1e-9
        assert np.array_equal(read_crop(content, KIND_RATE, 400, where), cut(whole, 400, where)), begin


def test_a_fast_crop_in_opus_differs_where_an_exact_one_does_not() -> None:
    rate = 48_000
    content = encode(low_tones(8 * rate, rate).astype(np.float32), rate, "opus")
    whole, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    places = np.random.default_rng(4).random(12).tolist()
    assert all(np.array_equal(read_crop(content, rate, rate, at), cut(whole, rate, at)) for at in places)
    fast = [np.abs(read_crop(content, rate, rate, at, "fast") - cut(whole, rate, at)).max() for at in places]
    assert 0 < max(fast) <= 1e-5


@pytest.mark.parametrize("mode", ["CONSTANT", "AVERAGE", "VARIABLE"])
@pytest.mark.parametrize("tag", [0, 100_000])
def test_bit_rates_and_tags_of_mp3_change_nothing(mode: str, tag: int) -> None:
    content = io.BytesIO()
    try:
        form = {"format": "MP3", "subtype": "MPEG_LAYER_III", "compression_level": 0.6, "bitrate_mode": mode}
        file = soundfile.SoundFile(content, "w", RATE, 2, **form)
    except TypeError:
        pytest.skip("soundfile before 0.13 sets no bit rate")
    with file:
        file.write(np.stack([CLIP, np.roll(CLIP, 5000)], axis=1))
    size = bytes(tag >> shift & 0x7F for shift in (21, 14, 7, 0))  # 7 bits in each byte
    tagged = b"ID3\x03\x00\x00" + size + b"\0" * tag + content.getvalue() if tag else content.getvalue()
    whole, _ = soundfile.read(io.BytesIO(tagged), dtype="float32")
    plain, _ = soundfile.read(io.BytesIO(content.getvalue()), dtype="float32")
    assert np.array_equal(whole, plain)
    for where in (0.0, 0.1, 0.37, 0.8, 1.0):
        assert np.array_equal(
            read_crop(tagged, RATE, RATE, where), cut(whole.mean(axis=1, dtype=np.float32), RATE, where)
        )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["OPUS", "MPEG_LAYER_III"]), st.floats(0.02, 0.99), st.floats(0, 1))
def test_what_is_left_of_a_cut_clip_is_exact(subtype: str, part: float, where: float) -> None:
    content, _ = make_kind("OGG" if subtype == "OPUS" else "MP3", subtype, 2, 2, 190_000)
    left = content[: int(len(content) * part)]
    try:
        crop = read_crop(left, KIND_RATE, 16_000, where)
    except ClipError:
        return
    whole, _ = soundfile.read(io.BytesIO(left), dtype="float32")
    frames = read_info(left).frames  # by the header: not all of them may be left
    begin = int(where * (max(0, frames - 16_000) + 1)) if where < 1 else max(0, frames - 16_000)
    assert np.array_equal(crop, whole[begin : begin + 16_000].mean(axis=1, dtype=np.float32))


def test_no_whole_clip_is_in_memory() -> None:
    content, whole = make_kind("OGG", "OPUS", 2, 0, 400_000)
    tracemalloc.start()
    read_crop(content, KIND_RATE, 8000, 1.0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < whole.nbytes / 2  # which is half of both channels


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
