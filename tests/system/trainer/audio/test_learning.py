"""Each objective learns in seconds where a clip is loud; chirps take minutes: bench/audio_objectives.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prime_train import spec
from prime_train.spec.audio import AudioObjective
from prime_train.trainer.audio.batches import AudioBatch
from prime_train.trainer.audio.learning.audio_model import AudioModel, audio_loss
from prime_train.trainer.audio.learning.micro_batch import make_micro_batch
from prime_train.trainer.audio.learning.probes import accuracy, classify, embed
from prime_train.trainer.loops.step import Training, adamw, take_step
from prime_train.trainer.parallel import World
from tests.unit.trainer.audio.learning import small
from tests.unit.trainer.tiny import CPU

CLASSES, BATCH = 4, 32


def draw_clips(first: int, count: int = BATCH) -> AudioBatch:
    """Noise that is loud for a while in one of four bands: the label."""
    places = np.arange(first, first + count)
    log_mels = np.zeros((count, 96, 64), dtype=np.float32)
    for place, out in zip(places, log_mels, strict=True):
        draw = np.random.default_rng(place)
        out[:] = 0.3 * draw.standard_normal(out.shape)
        begin, low = draw.integers(0, 64), 16 * (place % CLASSES)
        out[begin : begin + 32, low : low + 16] += 1.5
    return AudioBatch(log_mels, (places % CLASSES).reshape(-1, 1), np.full(count, 96), places, places)


def score(model: AudioModel) -> float:
    """The accuracy of the probe on clips that no step has."""
    held_out = draw_clips(10**6, 64)
    assert model.probe is not None
    with torch.no_grad():
        logits = classify(model.probe, embed(model, torch.from_numpy(held_out.log_mels), CPU))
    return accuracy(logits, torch.from_numpy(held_out.labels))


@pytest.mark.parametrize("objective", small.OBJECTIVES)
def test_an_objective_learns(objective: AudioObjective) -> None:
    audio = small.config(objective)
    model = small.model(audio, CLASSES)
    assert score(model) < 0.6
    training = Training(model, adamw(model, spec.Optim(weight_decay=0.02)), World(0, 1), CPU, clip_norm=1.0)
    losses = []
    for step in range(60):
        batch = make_micro_batch(draw_clips(step * BATCH), audio, CLASSES, seed=1)
        losses.append(take_step(training, [batch], 3e-3, audio_loss).loss)
    assert score(model) > 0.8
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
