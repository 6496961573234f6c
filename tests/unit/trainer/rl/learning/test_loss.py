"""The loss: torch's own values and gradients, and sums that add up over unlike parts."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prime_train.trainer.batch import IGNORED
from prime_train.trainer.model.decoder import cross_entropy_sum


def example(positions: int, vocab: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(positions, vocab, generator=generator) * 4
    labels = torch.randint(0, vocab, (positions,), generator=generator)
    labels[torch.rand(positions, generator=generator) < 0.3] = IGNORED
    return logits.requires_grad_(), labels


@settings(max_examples=40, deadline=None)
@given(positions=st.integers(1, 20), vocab=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_value_and_gradient_are_those_of_torch(positions: int, vocab: int, seed: int) -> None:
    logits, labels = example(positions, vocab, seed)
    total = cross_entropy_sum(logits, labels)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(total, expected)
    ours = torch.autograd.grad(total * 0.25, logits)
    theirs = torch.autograd.grad(expected * 0.25, logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_gradient_does_not_change_what_it_came_from() -> None:
    logits, labels = example(8, 16, 0)
    before = logits.detach().clone()
    cross_entropy_sum(logits, labels).backward()  # type: ignore[no-untyped-call]
    assert torch.equal(logits.detach(), before)


def test_half_precision_logits_are_summed_in_fp32() -> None:
    logits, labels = example(64, 50, 0)
    half = logits.detach().bfloat16().requires_grad_()
    total = cross_entropy_sum(half, labels)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, F.cross_entropy(half.float(), labels, reduction="sum"))
    (gradient,) = torch.autograd.grad(total, half)
    assert gradient.dtype == torch.bfloat16


def test_a_second_backward_raises_instead_of_being_wrong() -> None:
    logits, labels = example(4, 8, 0)
    total = cross_entropy_sum(logits, labels)
    total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()  # type: ignore[no-untyped-call]


def test_no_label_no_loss_no_gradient() -> None:
    logits, _ = example(4, 8, 0)
    total = cross_entropy_sum(logits, torch.full((4,), IGNORED))
    assert float(total.detach()) == 0.0
    assert not torch.autograd.grad(total, logits)[0].any()


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    total = cross_entropy_sum(logits, torch.tensor([1]))
    assert float(total.detach()) == pytest.approx(2e4)
    assert math.isfinite(float(torch.autograd.grad(total, logits)[0].sum()))


def test_summed_loss_over_parts_is_the_mean_over_all_tokens() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(6, 5, 97, generator=generator)
    labels = torch.randint(0, 97, (6, 5), generator=generator)
    labels[0, 1:] = IGNORED  # parts with unlike numbers of labels
    labels[5] = IGNORED
    parts = [cross_entropy_sum(logits[rows], labels[rows]) for rows in (slice(0, 1), slice(1, 5), slice(5, 6))]
    mean = torch.stack(parts).sum() / (labels != IGNORED).sum()
    torch.testing.assert_close(mean, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    assert float(parts[2]) == 0.0
