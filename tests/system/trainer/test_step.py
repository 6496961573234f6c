"""One optimizer step is that of the textbook, however its rows are split."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from prime_train.spec import Optim
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.loops.step import Training, Votes, adamw, train_step
from prime_train.trainer.model.decoder import Decoder
from prime_train.trainer.parallel import World
from tests.unit.trainer import tiny


def training(model: Decoder, clip_norm: float | None = 1.0) -> Training:
    return Training(model, adamw(model, Optim()), World(rank=0, size=1), tiny.CPU, clip_norm)


def split(whole: MicroBatch) -> list[MicroBatch]:
    """A batch of one row for each row."""
    fields = ("tokens", "labels", "positions", "documents")
    return [
        MicroBatch(**{name: getattr(whole, name)[row : row + 1] for name in fields}) for row in range(len(whole.tokens))
    ]


def test_the_loss_is_the_mean_over_labelled_tokens() -> None:
    model, batch = tiny.decoder(), tiny.batch(3, rows=1, ctx_tokens=8)
    first = model(batch.tokens[:, :4], batch.positions[:, :4], None)  # the two documents of the row, each on its own
    second = model(batch.tokens[:, 4:], batch.positions[:, 4:], None)
    expected = F.cross_entropy(torch.cat([first, second], 1)[0], batch.labels[0])
    result = train_step(training(model), [batch], lr=1e-3)
    assert result.loss == pytest.approx(float(expected.detach()), abs=1e-6)
    assert result.tokens == 7  # the last position of the first document has no label


def test_accumulation_gives_the_step_of_the_whole_batch() -> None:
    """Also where the micro-batches have unlike numbers of labels: a mean of means would differ."""
    whole, parted = tiny.decoder(), tiny.decoder()
    batch = tiny.batch(3, rows=4)
    batch.labels[0, :6] = -100
    one = train_step(training(whole), [batch], lr=1e-2)
    many = train_step(training(parted), split(batch), lr=1e-2)
    assert many.loss == pytest.approx(one.loss, abs=1e-6)
    assert many.grad_norm == pytest.approx(one.grad_norm, abs=1e-5)
    for name, weight in whole.named_parameters():
        assert torch.allclose(weight, parted.get_parameter(name), atol=1e-5), name


def test_clipping_bounds_the_update_and_reports_the_norm_before() -> None:
    free, clipped = tiny.decoder(), tiny.decoder()
    batch = tiny.batch(3)
    unclipped = train_step(training(free, clip_norm=None), [batch], lr=1e-3)
    assert train_step(training(clipped, clip_norm=1e-3), [batch], lr=1e-3).grad_norm == unclipped.grad_norm


def test_before_update_sees_gradients_and_the_weights_of_before() -> None:
    model = tiny.decoder()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    seen: list[bool] = []

    def look() -> None:
        same = all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
        seen.append(same and all(weight.grad is not None for weight in model.parameters()))

    train_step(training(model), [tiny.batch(3)], lr=1e-2, before_update=look)
    assert seen == [True]
    assert not torch.equal(model.embedding.weight, before["embedding.weight"])


def test_a_stop_that_was_asked_is_reported() -> None:
    assert train_step(training(tiny.decoder()), [tiny.batch(3)], lr=1e-3, votes=Votes(stop=True)).stop
    assert not train_step(training(tiny.decoder()), [tiny.batch(3)], lr=1e-3).stop


def test_repeated_steps_learn_a_batch_by_heart() -> None:
    state = training(tiny.decoder())
    losses = [train_step(state, [tiny.batch(3)], lr=1e-2).loss for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
