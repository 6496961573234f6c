"""Each objective is a sum over clips with finite gradients, and the probe changes no encoder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prime_train.spec.audio import Audio, AudioObjective
from prime_train.spec.clip_size import count_parameters
from prime_train.trainer.audio.learning.audio_model import AudioModel, audio_loss, standardise
from prime_train.trainer.audio.learning.micro_batch import AudioMicroBatch
from prime_train.trainer.audio.learning.supervised import Supervised
from tests.unit.trainer.audio.learning import small
from tests.unit.trainer.tiny import CPU

objectives = pytest.mark.parametrize("objective", small.OBJECTIVES)


def learn(model: AudioModel, batches: list[AudioMicroBatch]) -> tuple[float, dict[str, Tensor]]:
    """The sum of the losses, and the gradients."""
    model.zero_grad()
    loss = 0.0
    for batch in batches:
        summed = audio_loss(model, batch, CPU)
        torch.autograd.backward(summed)
        loss += summed.item()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return loss, gradients


@objectives
def test_every_weight_has_a_finite_gradient(objective: AudioObjective) -> None:
    audio = small.config(objective)
    model = small.model(audio)
    _, gradients = learn(model, [small.micro_batch(audio, 6)])
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("objective", ["supervised", "masked_autoencoder"])
def test_any_split_of_a_batch_is_the_same_training(objective: AudioObjective, multi_label: bool) -> None:
    audio = small.config(objective, multi_label=multi_label)
    labels = [[1], [-1], [4], [0], [-1], [3]]
    model = small.model(audio)
    loss, gradients = learn(model, [small.micro_batch(audio, 6, labels=labels)])
    parts = [small.micro_batch(audio, 2, first, labels=labels[first : first + 2]) for first in (0, 2, 4)]
    other_loss, others = learn(model, parts)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        if not name.startswith("probe."):  # which compares the clips of a micro-batch
            torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@objectives
def test_probe_changes_neither_loss_nor_encoder(objective: AudioObjective) -> None:
    audio = small.config(objective)
    with_probe, without = small.model(audio), small.model(audio)
    without.probe = None
    batch = [small.micro_batch(audio, 4)]
    loss, gradients = learn(with_probe, batch)
    other_loss, others = learn(without, batch)
    assert loss == other_loss
    for name, gradient in others.items():
        assert torch.equal(gradient, gradients[name]), name
    assert gradients.keys() - others.keys() == {"probe.weight", "probe.bias"}


def test_probe_learns_the_cross_entropy_of_its_logits() -> None:
    audio = small.config("masked_autoencoder")
    model = small.model(audio)
    batch = small.micro_batch(audio, 4, labels=[[1], [-1], [4], [0]])
    _, gradients = learn(model, [batch])
    with torch.no_grad():
        _, embedding = model.objective(model.encoder, batch.log_mels, *batch.drawn)
    assert model.probe is not None
    logits = model.probe((embedding - embedding.mean(0)) / embedding.std(0, correction=0))
    labelled = torch.tensor([0, 2, 3])
    expected = F.cross_entropy(logits[labelled], batch.labels[labelled, 0], reduction="sum")
    (gradient,) = torch.autograd.grad(expected, [model.probe.weight])
    torch.testing.assert_close(gradients["probe.weight"], gradient, rtol=1e-4, atol=1e-4)


def test_embeddings_that_share_most_are_as_far_apart_as_others() -> None:
    draw = torch.Generator().manual_seed(3)
    own = torch.randn(16, 6, generator=draw)
    own[:, 2] = 0.0
    found = standardise(torch.randn(6, generator=draw) + 0.01 * own)
    torch.testing.assert_close(found, standardise(own), rtol=1e-2, atol=1e-2)
    expected = torch.ones(6)
    expected[2] = 0.0
    torch.testing.assert_close(found.square().mean(0), expected, rtol=1e-2, atol=1e-3)
    assert not standardise(own[:1]).any()


def test_several_labels_are_a_sigmoid_each() -> None:
    audio = small.config("supervised", multi_label=True)
    model = small.model(audio)
    batch = small.micro_batch(audio, 3, labels=[[1, 3], [-1, -1], [4, -1]])
    assert isinstance(model.objective, Supervised)
    with torch.no_grad():
        logits = model.objective.head(model.encoder.pool(model.encoder(batch.log_mels)))
    expected = 0.0
    for row, wanted in ((0, {1, 3}), (2, {4})):
        for label in range(small.CLASSES):
            chance = torch.sigmoid(logits[row, label])
            expected -= float((chance if label in wanted else 1 - chance).log()) / small.CLASSES
    assert audio_loss(model, batch, CPU).item() == pytest.approx(expected, rel=1e-4)
    assert batch.labelled_tokens == 2


def test_no_labels_need_no_probe() -> None:
    audio = small.config("lejepa")
    model = small.model(audio, classes=0)
    batch = small.micro_batch(audio, 2, labels=[[-1], [-1]])
    assert audio_loss(model, batch, CPU).isfinite()
    assert model(batch.log_mels).shape == (2, 32)
    assert model.probe is None


def test_same_seed_is_the_same_encoder_for_all() -> None:
    weights = [small.model(small.config(objective)).encoder.state_dict() for objective in small.OBJECTIVES]
    for other in weights[1:]:
        assert all(torch.equal(other[name], weight) for name, weight in weights[0].items())


@pytest.mark.parametrize("audio", [Audio(), small.AUDIO, replace(small.AUDIO, frames=512, mels=128)])
@objectives
def test_counts_are_those_of_the_model(audio: Audio, objective: AudioObjective) -> None:
    audio = replace(audio, objective=objective)
    with torch.device("meta"):
        model = AudioModel(audio, 7)
    assert sum(weight.numel() for weight in model.encoder.parameters()) == count_parameters(audio)
