"""The decoder predicts hidden patches from the others, wherever they are."""

from __future__ import annotations

from dataclasses import replace

import torch

from prime_train.spec.clip_size import count_seen
from prime_train.trainer.audio.learning.masked_autoencoder import MaskedPatches, normalise_patches
from prime_train.trainer.audio.learning.patch_encoder import cut_patches
from tests.unit.trainer.audio.learning import small

AUDIO = small.config("masked_autoencoder")


def test_hidden_patches_are_not_seen() -> None:
    model = small.model(AUDIO)
    batch = small.micro_batch(AUDIO, 2)
    (order,) = batch.drawn
    seen = count_seen(AUDIO)
    assert seen == 6
    with torch.no_grad():
        _, expected = model.objective(model.encoder, batch.log_mels, order)
        for row in range(2):
            time, pitch = divmod(int(order[row, seen]), 4)
            batch.log_mels[row, 16 * time : 16 * time + 16, 16 * pitch : 16 * pitch + 16] += 5
        _, found = model.objective(model.encoder, batch.log_mels, order)
    assert torch.equal(found, expected)


def test_order_of_seen_and_of_hidden_changes_no_loss() -> None:
    model = small.model(AUDIO)
    batch = small.micro_batch(AUDIO, 3)
    (order,) = batch.drawn
    seen = count_seen(AUDIO)
    shuffled = torch.cat((order[:, :seen].flip(1), order[:, seen:].roll(5, 1)), 1)
    with torch.no_grad():
        losses = [model.objective(model.encoder, batch.log_mels, one)[0] for one in (order, shuffled)]
        exchanged = model.objective(model.encoder, batch.log_mels, order.roll(seen, 1))[0]
    torch.testing.assert_close(losses[1], losses[0])
    assert not torch.allclose(exchanged, losses[0])


def test_loss_is_that_of_plain_sums() -> None:
    audio = replace(AUDIO, masked_autoencoder=replace(AUDIO.masked_autoencoder, normalise=False))
    model = small.model(audio)
    batch = small.micro_batch(audio, 2)
    (order,) = batch.drawn
    seen, patches = count_seen(audio), cut_patches(batch.log_mels, 16)
    with torch.no_grad():
        loss, _ = model.objective(model.encoder, batch.log_mels, order)
        encoded = model.encoder(batch.log_mels, order[:, :seen])[:, 2:]
        assert isinstance(model.objective, MaskedPatches)
        predicted = model.objective.predict(encoded, order)
    expected = 0.0
    for row in range(2):
        hidden = [patches[row, at] for at in order[row, seen:].tolist()]
        wrong = [(one - other).square().mean() for one, other in zip(predicted[row], hidden, strict=True)]
        expected += float(sum(wrong)) / len(wrong)
    assert abs(float(loss) - expected) < 1e-4


def test_normal_patches_have_mean_0_and_deviation_1() -> None:
    patches = torch.randn(2, 3, 256) * 4 + 7
    patches[0, 0] = 2.5  # padding is constant
    found = normalise_patches(patches)
    assert torch.equal(found[0, 0], torch.zeros(256))
    torch.testing.assert_close(found[1].mean(-1), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(found[1].std(-1, correction=0), torch.ones(3))
