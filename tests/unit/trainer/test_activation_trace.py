"""bench/activation_trace.py counts what is kept, and the terms of the bundled trainer agree with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.model.shape import ModelShape
from tests.unit.bench.modules import imported
from tests.unit.estimate.training_cases import EIGHT_GPUS, native

with imported("activation_trace") as (bench,):
    pass

_SMALL = bench.Sizes(
    vocab_size=1000,
    hidden_size=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_size=160,
    qk_norm=False,
    tokens=512,
    head_tokens=512,
    autocast=False,
    in_place=False,
)


def test_live_bytes_are_those_that_something_refers_to() -> None:
    with bench.LiveBytes(frozenset()) as live:
        a = torch.ones(1000)
        b = a.view(10, 100)
        assert live.live_bytes == 4000
        c = a + 1
        assert live.live_bytes == 8000
        del a, c
        assert live.live_bytes == 4000
        del b
    assert live.live_bytes == 0
    assert live.peak_bytes == 8000


def test_weights_their_casts_and_gradients_are_left_out() -> None:
    layer = nn.Linear(100, 50, bias=False)
    with bench.LiveBytes(frozenset({(50, 100)})) as live:
        out = layer(torch.ones(3, 100))
        out.sum().backward()
    assert live.peak_bytes < 50 * 100 * 4
    assert layer.weight.grad is not None


def test_a_traced_block_agrees_with_a_count_by_hand() -> None:
    """In bf16, per token: what each matrix and each product reads, twice the residual stream, attention's five."""
    traced = bench.trace(_SMALL)
    queries, keys = 4 * 16, 2 * 16
    by_hand = 2 * (4 * 64 + 3 * queries + 2 * 2 * keys + 4 * 160) * _SMALL.tokens
    assert 0.8 * by_hand < traced.block_kept_bytes < 1.5 * by_hand
    assert traced.block_peak_bytes > traced.block_kept_bytes


def test_activations_grow_with_tokens_and_nothing_else_does() -> None:
    once, twice = bench.trace(_SMALL), bench.trace(_SMALL._replace(tokens=1023, head_tokens=1023))
    for before, after in zip(once, twice, strict=True):
        assert 1.95 < after / before < 2.05


def test_the_bundled_loss_keeps_one_buffer_of_logits() -> None:
    ours = bench.trace(_SMALL._replace(autocast=True, in_place=True, fused=True)).head_peak_bytes
    torchs = bench.trace(_SMALL._replace(autocast=True)).head_peak_bytes
    logits = _SMALL.head_tokens * _SMALL.vocab_size
    assert 6 * logits < ours < 7 * logits
    assert torchs > 1.5 * ours


def test_tokens_like_a_width_are_no_weight() -> None:
    assert bench.trace(_SMALL._replace(tokens=64)).block_kept_bytes > 0.9 * bench.trace(_SMALL).block_kept_bytes / 8


def test_a_fused_norm_keeps_its_input_and_a_number_per_row() -> None:
    """Separate operations save one tensor more per norm: the normalised input, in fp32 and in bf16."""
    separate, fused = bench.trace(_SMALL), bench.trace(_SMALL._replace(fused=True))
    saved = (separate.block_kept_bytes - fused.block_kept_bytes) / (2 * _SMALL.tokens * _SMALL.hidden_size)
    assert saved >= 2


def small_shape(vocab_size: int) -> ModelShape:
    return ModelShape(
        name="small",
        vocab_size=vocab_size,
        layers=2,
        hidden_size=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        mlp_size=704,
        parameters=5_000_000,
        tie_embeddings=True,
        source="test",
        dense_layers=2,
    )


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_terms_of_the_bundled_trainer_are_what_is_traced(compute: str, shards: int) -> None:
    run = native(ctx_tokens=512, micro_batch=2, processes=shards, shards=shards, compute=compute)
    shape = small_shape(vocab_size=4096)
    setup = setup_of(run, EIGHT_GPUS, shape)
    for part in bench.compare_terms(setup):
        assert part.term_bytes == pytest.approx(part.traced_bytes, rel=0.1), part


def test_the_head_of_a_large_vocabulary_is_traced_in_chunks() -> None:
    shape = small_shape(vocab_size=40_000)
    for compute in ("bf16", "fp32"):
        setup = setup_of(native(ctx_tokens=1024, micro_batch=4, compute=compute), EIGHT_GPUS, shape)
        head = bench.compare_terms(setup)[-1]
        assert head.name == "logits and loss"
        assert head.term_bytes == pytest.approx(head.traced_bytes, rel=0.02), compute
