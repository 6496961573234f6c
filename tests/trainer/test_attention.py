"""Packed pieces attend to themselves alone, by a plan that never holds T x T positions of long rows."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prime_train.trainer.attention import (
    DENSE_BELOW,
    Pieces,
    Plan,
    attend,
    block_causal_mask,
    plan_attention,
    plan_shared_prompts,
)
from prime_train.trainer.data.batch import IGNORED, Batch
from prime_train.trainer.device import Device
from prime_train.trainer.model import Decoder, build
from prime_train.trainer.step import loss_sum
from tests.trainer import tiny
from tests.trainer.varlen_on_cpu import GPU

EXACT_GPU = replace(GPU, compute="fp32")  # the plan of a GPU, without its rounding
HOW = pytest.mark.parametrize("device", [tiny.CPU, EXACT_GPU], ids=["CPU", "GPU"])


def document_numbers(rows: list[list[int]]) -> Tensor:
    """(B, T) of rows of pieces with these lengths."""
    return torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows])


def packed(rows: list[list[int]]) -> Batch:
    """Rows of documents of these lengths; the last of each row is its padding."""
    documents = document_numbers(rows)
    tokens = torch.randint(0, tiny.CONFIG.vocab_size, documents.shape, generator=torch.Generator().manual_seed(0))
    labels = tokens.roll(-1, 1)
    for row, lengths in enumerate(rows):
        labels[row, torch.tensor(lengths).cumsum(0) - 1] = IGNORED
        labels[row, sum(lengths[:-1]) :] = IGNORED
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in rows])
    return Batch(tokens, labels, positions, documents)


def alone(batch: Batch, rows: list[list[int]]) -> list[Batch]:
    """Each document of a packed batch as a batch of its own."""
    made = []
    for row, lengths in enumerate(rows):
        for end, length in zip(torch.tensor(lengths).cumsum(0).tolist(), lengths[:-1], strict=False):
            at = (slice(row, row + 1), slice(end - length, end))
            made.append(Batch(batch.tokens[at], batch.labels[at], batch.positions[at], batch.documents[at]))
    return made


def loud() -> Decoder:
    """A decoder whose weights are large enough for attention to be far from uniform."""
    decoder = build(tiny.CONFIG, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.normal_(1.0 if weight.ndim < 2 else 0.0, 0.1, generator=generator)
    return decoder


def mean_loss(decoder: Decoder, batches: list[Batch], device: Device) -> tuple[Tensor, list[Tensor]]:
    """The loss per labelled token, and its gradient for each weight."""
    losses = torch.stack([loss_sum(decoder, batch, device) for batch in batches])
    loss = losses.sum() / sum(batch.labelled_tokens for batch in batches)
    return loss.detach(), list(torch.autograd.grad(loss, list(decoder.parameters())))


ROWS = {
    256: [[100, 1, 55, 90, 10], [255, 1], [3] * 80 + [16]],
    2048: [[1200, 500, 100, 148, 60, 30, 5, 3, 2], [40] * 51 + [8]],
    8192: [[3000, 1800, 1900, 900, 300, 100, 60, 20, 5, 3, 104]],
}


@HOW
@pytest.mark.parametrize("ctx_tokens", ROWS)
def test_packed_documents_have_the_loss_and_the_gradients_of_separate_ones(ctx_tokens: int, device: Device) -> None:
    decoder, rows = loud(), ROWS[ctx_tokens]
    together = packed(rows)
    assert together.tokens.shape == (len(rows), ctx_tokens)
    loss, gradients = mean_loss(decoder, [together], device)
    expected_loss, expected = mean_loss(decoder, alone(together, rows), tiny.CPU)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-5)


class Sizes(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        return made


@HOW
@pytest.mark.parametrize("lengths", [[256, 200, 40, 10, 6], [511, 1], [2] * 256, [500, 12]])
def test_no_tensor_of_a_step_has_the_square_of_a_long_row(device: Device, lengths: list[int]) -> None:
    batch = packed([lengths])
    assert batch.tokens.shape[1] == DENSE_BELOW
    decoder = loud()
    with Sizes() as sizes:
        plan = plan_attention(batch.documents, None, device)
        assert plan is not None
        query = torch.randn(1, DENSE_BELOW, 2, 16, requires_grad=True)
        key = torch.randn(1, DENSE_BELOW, 1, 16, requires_grad=True)
        attend(query, key, key, plan).sum().backward()
    assert query.numel() < DENSE_BELOW**2
    if device is tiny.CPU:  # the slow kernel of the tests has the square of a piece
        assert sizes.largest < DENSE_BELOW**2
    with Sizes() as sizes:
        plan_attention(batch.documents, batch.labels, device)
    assert sizes.largest <= DENSE_BELOW * 192
    assert decoder is not None
