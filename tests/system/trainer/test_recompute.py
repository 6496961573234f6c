"""Recomputed activations give the gradients of kept ones, and keep fewer bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from prime_train import spec
from prime_train.trainer.loops.step import loss_sum
from prime_train.trainer.model.block_changes import recompute_blocks
from prime_train.trainer.model.decoder import Decoder, build
from tests.system.trainer.live_tensors import LiveTensors
from tests.unit.trainer import tiny

KINDS = [("selective", 1), ("full", 1), ("full", 2), ("selective", 3)]
BATCH = tiny.batch(1, rows=4, ctx_tokens=64)


def decoder(recompute: Any = "none", every: int = 1) -> Decoder:
    model = build(replace(tiny.CONFIG, layers=4), seed=1)
    recompute_blocks(model, spec.Model(recompute=recompute, recompute_every=every))
    return model


def gradients(model: Decoder) -> dict[str, Tensor]:
    loss_sum(model, BATCH, tiny.CPU).backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def kept_bytes(model: Decoder) -> int:
    """Bytes that a forward leaves for the backward."""
    live = LiveTensors(iter(model.parameters()))
    with live:
        summed = loss_sum(model, BATCH, tiny.CPU)
        kept = live.bytes() - live.resident
    del summed
    return kept


@pytest.mark.parametrize(("kind", "every"), KINDS)
def test_the_gradients_are_equal_to_the_bit(kind: str, every: int) -> None:
    expected, found = gradients(decoder()), gradients(decoder(kind, every))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_more_is_recomputed_the_fewer_bytes_are_kept() -> None:
    bytes_of = {(kind, every): kept_bytes(decoder(kind, every)) for kind, every in [("none", 1), *KINDS]}
    none, selective, full, second = (bytes_of[key] for key in [("none", 1), *KINDS[:3]])
    assert full < 0.5 * none
    assert full < selective < 0.8 * none
    assert second == pytest.approx((none + full) / 2, rel=0.05)
    assert bytes_of["selective", 3] == pytest.approx((none + selective) / 2, rel=0.05)  # blocks 0 and 3 of 4


def test_names_and_an_evaluation_do_not_change() -> None:
    plain, recomputed = decoder(), decoder("full")
    assert list(plain.state_dict()) == list(recomputed.state_dict())
    with torch.no_grad():
        expected = plain(BATCH.tokens, BATCH.positions, None)
        assert torch.equal(recomputed(BATCH.tokens, BATCH.positions, None), expected)


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_a_compiled_block_is_one_graph_that_recomputes(recompute: str) -> None:
    """torch.compile skips, without a word, a block whose first frame is torch's own."""
    expected, model, counter = gradients(decoder()), decoder(recompute), CompileCounterWithBackend("aot_eager")
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True)
    found = gradients(model)
    assert counter.frame_count == 1  # the blocks are alike
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
