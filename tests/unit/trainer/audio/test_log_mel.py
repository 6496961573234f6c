"""The log-mel spectrogram is Kaldi's, for every kind of signal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.audio.log_mel import Floats, MelSettings, compute_log_mel, write_sample

MEL = MelSettings()
DRAW = np.random.default_rng(0)
TIME_S = np.arange(16_000) / MEL.sample_rate
SIGNALS = {
    "noise": 0.1 * DRAW.standard_normal(16_000),
    "quiet": 1e-5 * DRAW.standard_normal(16_000),
    "tone": 0.5 * np.sin(2 * np.pi * 3000 * TIME_S),
    "silence": np.zeros(16_000),
    "constant": np.full(16_000, 0.3),
    "noise on a constant": 0.1 * DRAW.standard_normal(16_000) + 0.3,
    "loud": np.sign(np.sin(2 * np.pi * 440 * TIME_S)),
}


# Some of its values, (frame, mel): for the signal of the test below.
TORCHAUDIO = {(0, 0): -7.4677, (0, 40): 0.1291, (1, 54): -0.5473, (5, 100): 3.537, (10, 127): 7.2335, (9, 127): 3.8308}


def compute_plainly(signal: Floats, settings: MelSettings) -> Floats:
    """Kaldi's steps one after the other in double precision, for each frame alone."""
    width, padded = settings.window, 1024
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / (width - 1))
    low, high = (1127 * np.log(1 + hertz / 700) for hertz in (settings.low_hz, settings.sample_rate / 2))
    step = (high - low) / (settings.mels + 1)
    at = 1127 * np.log(1 + np.arange(padded // 2 + 1) * settings.sample_rate / padded / 700)
    filters = []
    for mel in range(settings.mels):
        rising, falling = (at - low - mel * step) / step, (low + (mel + 2) * step - at) / step
        filters.append(np.clip(np.minimum(rising, falling), 0, None))
    weights = np.array(filters)
    weights[:, -1] = 0
    rows = []
    for begin in range(0, len(signal) - width + 1, settings.hop):
        frame = signal[begin : begin + width].astype(np.float64)
        frame = frame - frame.mean()
        frame = np.append(frame[0] * (1 - 0.97), frame[1:] - 0.97 * frame[:-1]) * window
        energies = weights @ np.abs(np.fft.rfft(frame, padded)) ** 2
        rows.append(np.log(np.maximum(energies, np.finfo(np.float32).eps)))
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize("name", SIGNALS)
def test_it_equals_the_plain_formula(name: str) -> None:
    signal = SIGNALS[name].astype(np.float32)
    found = compute_log_mel(signal, MEL)
    assert found.shape == (48, 128)
    np.testing.assert_allclose(found, compute_plainly(signal, MEL), rtol=1e-3, atol=1e-3)


def test_it_equals_torchaudio() -> None:
    # torchaudio 2.11.1, compliance.kaldi.fbank: hanning, preemphasis 0.97, dither 0, snip_edges, 128 bins from 20 Hz.
    time_s = np.arange(4000) / 32_000
    chirp = 0.1 * np.sin(2 * np.pi * 7000 * time_s * time_s * 10)
    found = compute_log_mel((0.3 * np.sin(2 * np.pi * 1000 * time_s) + chirp + 0.05).astype(np.float32), MEL)
    for (frame, mel), value in TORCHAUDIO.items():
        assert found[frame, mel] == pytest.approx(value, rel=1e-3, abs=1e-3)
    assert found.mean() == pytest.approx(-10.9139, abs=1e-3)


def test_a_wider_window_before_it_changes_nothing() -> None:
    signal = SIGNALS["noise"].astype(np.float32)
    expected = compute_log_mel(signal, MEL)
    compute_log_mel(signal, MelSettings(window_ms=30.0))
    np.testing.assert_array_equal(compute_log_mel(signal, MEL), expected)


@given(st.integers(0, 3000))
def test_frames_lie_inside_the_signal(samples: int) -> None:
    found = compute_log_mel(np.ones(samples, dtype=np.float32), MEL)
    assert len(found) == MEL.count_frames(samples) == max(0, (samples - 480) // 320)


@pytest.mark.parametrize("frames", [0, 1, 498, 512, 600])
def test_a_sample_is_padded_with_its_least_value(frames: int) -> None:
    log_mel = DRAW.standard_normal((frames, 128)).astype(np.float32)
    out = np.full((512, 128), np.nan, dtype=np.float32)
    assert write_sample(log_mel, MEL, out) == min(frames, 512)
    assert np.isfinite(out).all()
    if 0 < frames < 512:
        assert (out[frames:] == out[:frames].min()).all()
        np.testing.assert_allclose(out[:frames], (log_mel + 7.2) / 8.86, rtol=1e-5, atol=1e-6)
