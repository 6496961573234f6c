"""A small encoder, and clips of random numbers for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from prime_train.spec.audio import Audio, AudioEncoder, AudioObjective, Lejepa, MaskedAutoencoder
from prime_train.trainer.audio.batches import AudioBatch
from prime_train.trainer.audio.learning.audio_model import AudioModel, build_audio
from prime_train.trainer.audio.learning.micro_batch import AudioMicroBatch, make_micro_batch

OBJECTIVES: tuple[AudioObjective, ...] = ("supervised", "masked_autoencoder", "lejepa")
CLASSES = 5
AUDIO = Audio(
    frames=96,
    mels=64,
    encoder=AudioEncoder(layers=2, width=32, heads=2, registers=2),
    masked_autoencoder=MaskedAutoencoder(layers=1, width=16, heads=2),
    lejepa=Lejepa(slices=32, projector_width=24, projection=8),
)


def config(objective: AudioObjective = "supervised", **changes: Any) -> Audio:
    return replace(AUDIO, objective=objective, **changes)


def model(audio: Audio, classes: int = CLASSES) -> AudioModel:
    return build_audio(audio, classes, seed=1)


def clips(count: int, first: int = 0, labels: list[list[int]] | None = None) -> AudioBatch:
    """Clips at the places from `first` on, each with numbers of its own."""
    places = np.arange(first, first + count)
    log_mels = np.stack([np.random.default_rng(place).standard_normal((96, 64)) for place in places])
    found = np.array(labels or [[place % CLASSES] for place in range(first, first + count)])
    return AudioBatch(log_mels.astype(np.float32), found, np.full(count, 96), places, places)


def micro_batch(audio: Audio, count: int, first: int = 0, **given: Any) -> AudioMicroBatch:
    return make_micro_batch(clips(count, first, **given), audio, CLASSES, seed=3)
