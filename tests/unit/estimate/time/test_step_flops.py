"""What a step does, against counts made by hand and what must hold of every step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from prime_train.estimate.time.step_flops import StepSetup, StepWork, work_of
from tests.unit.estimate.step_cases import LLAMA_1B, changed, known, setups, step


def amounts(work: StepWork) -> list[float]:
    """Every quantity of a Work as one list of numbers."""
    flat: list[float] = []
    for value in work:
        flat += list(value) if isinstance(value, tuple) else [value]
    return flat


def test_model_flops_are_six_per_weight_and_token_where_the_context_is_short() -> None:
    shape = known("mosaicml/mpt-7b")
    work = work_of(StepSetup(shape, ctx_tokens=128, micro_batch_tokens=1024))
    assert work.model_flops == pytest.approx(6 * shape.parameters * 1024, rel=0.01)


def test_checkpointing_computes_blocks_once_more() -> None:
    bare, full = work_of(step(recompute="none")), work_of(step(recompute="full"))
    assert bare.linear.again == bare.attention.again == 0
    assert full.linear.again == pytest.approx(full.linear.once / 3)
    assert full.linear.once == bare.linear.once
    assert full.attention.once == pytest.approx(3.5 * full.attention.again)


def test_a_frozen_base_has_no_weight_gradients_and_no_optimizer() -> None:
    whole, lora = work_of(step()), work_of(step(lora_rank=16))
    assert lora.linear.once == pytest.approx(whole.linear.once * 2 / 3)
    assert lora.optimizer_bytes == 0 < whole.optimizer_bytes
    assert whole.adapter_bytes == 0 < lora.adapter_bytes
    assert lora.node_bytes < whole.node_bytes


def test_weights_cross_the_network_only_between_machines() -> None:
    inside, outside = work_of(step(dp_shard=8)), work_of(step(dp_shard=16))
    assert inside.network_bytes == 0 < inside.node_bytes
    assert outside.network_bytes > 0 == outside.node_bytes
    # Gathered in bf16 for forward and backward, reduced in fp32: 8 bytes per parameter and micro-batch.
    assert outside.network_bytes == pytest.approx(2 * LLAMA_1B.parameters * 8 * 15 / 16)


def test_one_gpu_sends_nothing() -> None:
    alone = work_of(step(dp_shard=1))
    assert (alone.node_bytes, alone.network_bytes, alone.network_visits) == (0, 0, 0)


@pytest.mark.parametrize("split", ["tp", "pp", "cp"])
def test_splitting_a_model_splits_its_work(split: str) -> None:
    whole, part = work_of(step()), work_of(changed(step(), split, 4))
    assert part.linear.once == pytest.approx(whole.linear.once / 4)
    assert part.attention.once == pytest.approx(whole.attention.once / 4)
    assert part.model_flops < whole.model_flops


@given(setups())
def test_no_amount_of_work_is_negative_or_boundless(setup: StepSetup) -> None:
    assert all(amount >= 0 and math.isfinite(amount) for amount in amounts(work_of(setup)))


@given(setups())
def test_twice_the_micro_batches_are_twice_the_work_but_for_the_update(setup: StepSetup) -> None:
    once, twice = work_of(setup), work_of(setup._replace(micro_batches=2 * setup.micro_batches))
    assert twice.linear.once == pytest.approx(2 * once.linear.once)
    assert twice.head_bytes == pytest.approx(2 * once.head_bytes)
    assert twice.optimizer_bytes == once.optimizer_bytes


@given(setups())
def test_work_never_falls_when_the_batch_or_the_context_grows(setup: StepSetup) -> None:
    before = amounts(work_of(setup))
    for larger in (
        setup._replace(micro_batch_tokens=setup.micro_batch_tokens + 4096),
        setup._replace(ctx_tokens=setup.ctx_tokens + 4096),
        setup._replace(micro_batches=setup.micro_batches + 1),
    ):
        assert all(after >= was * (1 - 1e-12) for was, after in zip(before, amounts(work_of(larger)), strict=True))
