"""Experts: the grouped products are the loop over experts, and balance and z-loss do what their papers say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prime_train import spec
from prime_train.trainer.loops.step import Training, adamw, loss_sum, train_step
from prime_train.trainer.model.decoder import Decoder, Mlp, ModelConfig, flops_per_token
from prime_train.trainer.model.experts import (
    ExpertLoad,
    Experts,
    Mixture,
    Router,
    Routers,
    choose,
    find_routers,
    read_load,
)
from prime_train.trainer.parallel import World
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES, ROUTED, loud

ALONE = World(rank=0, size=1)
SIGMOID = replace(ROUTED, router="sigmoid")


def mixture(config: ModelConfig, seed: int = 0) -> Mixture:
    made = Mixture(config, Mlp(config.hidden_size, config.shared_mlp_size) if config.shared_experts else None)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0.0, 0.3, generator=generator)
    return made


def routers_of(model: Decoder) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]


def biases_of(router: Router) -> Tensor:
    assert router.balance is not None
    return router.balance


def loop(experts: Experts, x: Tensor, ends: list[int]) -> Tensor:
    """Each product expert by expert: x (N x K, C) is sorted by expert."""

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        starts = [0, *ends[:-1]]
        parts = zip(starts, ends, weight, strict=True)
        return torch.cat([x[start:end] @ of_expert.t() for start, end, of_expert in parts])

    gate, up = multiply(x, experts.gate_up).chunk(2, -1)
    return multiply(F.silu(gate) * up, experts.down)


@given(
    st.lists(st.integers(0, 40), min_size=4, max_size=4).filter(any), st.sampled_from([torch.float32, torch.bfloat16])
)
def test_grouped_products_are_the_loop_bit_by_bit(counts: list[int], dtype: torch.dtype) -> None:
    """Forward and backward, experts without a token included."""
    experts = mixture(ROUTED).experts.to(dtype)
    assert isinstance(experts, Experts)
    ends = torch.tensor(counts).cumsum(0)
    x = torch.randn(int(ends[-1]), ROUTED.hidden_size, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for compute in (lambda x: experts(x, ends.int()), lambda x: loop(experts, x, ends.tolist())):
        experts.zero_grad()
        given_x = x.clone().requires_grad_()
        out = compute(given_x)
        (out * torch.linspace(-1, 1, out.shape[1], dtype=dtype)).sum().backward()
        assert given_x.grad is not None
        results.append([out, given_x.grad, *(weight.grad for weight in experts.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("config", [ROUTED, SIGMOID, replace(SIGMOID, shared_experts=2, expert_scale=1.5)])
def test_a_mixture_is_the_weighted_sum_of_the_experts_of_each_token(config: ModelConfig) -> None:
    layer = mixture(config)
    x = torch.randn(2, 5, config.hidden_size, generator=torch.Generator().manual_seed(2))
    expected = torch.zeros_like(x).flatten(0, 1)
    for row, token in enumerate(x.flatten(0, 1)):
        logits = layer.router.weight @ token
        scores = logits.softmax(0) if config.router == "softmax" else logits.sigmoid()
        weights, chosen = scores.topk(2)
        for weight, number in zip(weights / weights.sum(), chosen.tolist(), strict=True):
            (gate, up), down = layer.experts.gate_up[number].chunk(2), layer.experts.down[number]
            expected[row] += config.expert_scale * weight * (down @ (F.silu(gate @ token) * (up @ token)))
    if layer.shared is not None:
        expected = expected + layer.shared(x.flatten(0, 1))
    torch.testing.assert_close(layer(x).flatten(0, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normed", [True, False])
def test_the_mixture_of_qwen3_moe_is_that_of_transformers_bit_by_bit(normed: bool) -> None:
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = replace(ROUTED, norm_expert_weights=normed)
    make: Any = Qwen3MoeConfig
    theirs = Qwen3MoeSparseMoeBlock(
        make(
            hidden_size=32,
            moe_intermediate_size=24,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=normed,
            experts_implementation="grouped_mm",
        )
    )
    ours = mixture(config)
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.experts.gate_up_proj.copy_(ours.experts.gate_up)
        theirs.experts.down_proj.copy_(ours.experts.down)
    x = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(3))
    assert torch.equal(ours(x), theirs(x))


def test_the_bias_decides_who_is_chosen_and_not_the_weights() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    plain, chosen = choose(logits, torch.zeros(4), SIGMOID)
    assert chosen.tolist() == [[0, 1]]
    _, pushed = choose(logits, torch.tensor([0.0, 0.0, 0.0, 5.0]), SIGMOID)
    assert pushed.tolist() == [[3, 0]]
    weights, _ = choose(logits, torch.tensor([5.0, 5.0, 0.0, 0.0]), SIGMOID)
    assert torch.equal(weights, plain)


def trained(config: ModelConfig, steps: int, rate: float, z_loss: float = 0.0) -> tuple[Decoder, list[int]]:
    """The model after some steps, and the tokens of the most visited expert in each."""
    model = loud(config)
    training = Training(
        model, adamw(model, spec.Optim()), ALONE, tiny.CPU, None, routers=find_routers(model, rate, z_loss)
    )
    most = []
    for seed in range(steps):
        result = train_step(training, [tiny.batch(seed), tiny.batch(seed + 100)], lr=1e-3)
        assert result.expert_load is not None
        mean = 2 * 32 * 2 // 4  # micro-batches, tokens, experts of a token, experts
        assert max(result.expert_load.expert_tokens_min) <= mean <= min(result.expert_load.expert_tokens_max)
        most.append(max(result.expert_load.expert_tokens_max))
    return model, most


def test_the_biases_balance_the_load() -> None:
    _, balanced = trained(SIGMOID, 30, 0.05)
    _, left = trained(SIGMOID, 30, 0.0)
    assert balanced[0] == left[0]
    assert balanced[-1] < left[-1]


def end(routers: Routers, positions: int, *, skip: bool = False) -> ExpertLoad:
    return read_load(routers.end(ALONE, positions, torch.tensor(skip)).tolist())


@pytest.mark.parametrize("skip", [False, True])
def test_a_bias_moves_by_the_rate_towards_the_mean_unless_the_step_is_skipped(skip: bool) -> None:
    model = loud(SIGMOID)
    routers = Routers(model, 0.25, 0.0)
    routers.begin(torch.tensor(1.0))
    before = [biases_of(router).clone() for router in routers_of(model)]
    for router in routers_of(model):
        router.counts.copy_(torch.tensor([7, 1, 4, 4]))
    load = end(routers, positions=8, skip=skip)
    assert load == ExpertLoad((1, 1), (7, 7), expert_load_max=7 / 4, idle_experts=0)
    moved = torch.zeros(4) if skip else torch.tensor([-0.25, 0.25, 0.0, 0.0])
    for router, was in zip(routers_of(model), before, strict=True):
        torch.testing.assert_close(biases_of(router) - was, moved)


def test_a_forward_that_is_repeated_does_not_change_the_counts() -> None:
    model = loud(SIGMOID)
    routers, batch = Routers(model, 0.0, 0.0), tiny.batch(1)
    loads = []
    for repeats in (1, 2):
        routers.begin(torch.tensor(1.0))
        for _ in range(repeats):
            loss_sum(model, batch, tiny.CPU)
        loads.append(end(routers, batch.tokens.numel()))
    assert loads[0] == loads[1]
    assert sum(loads[0].expert_tokens_max) > 0


def test_an_evaluation_counts_no_token() -> None:
    model = loud(SIGMOID)
    with torch.no_grad():
        loss_sum(model, tiny.batch(1), tiny.CPU)
    assert all(not router.counts.any() for router in routers_of(model))


def test_the_gradient_of_the_z_loss_and_the_loss_without_it() -> None:
    """Against autograd, on the mean per labelled token."""
    batch, weight = tiny.batch(1), 0.1
    model, plain = loud(SIGMOID), loud(SIGMOID)
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0, fused=True),
        ALONE,
        tiny.CPU,
        None,
        routers=find_routers(model, 0.0, weight),
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    result = train_step(training, [batch], lr=1.0)

    logits: list[Tensor] = []
    for each in routers_of(plain):
        each.register_forward_pre_hook(lambda router, inputs: logits.append(F.linear(inputs[0], router.weight)))
    loss = loss_sum(plain, batch, tiny.CPU)
    assert result.loss == pytest.approx(loss.item() / batch.labelled_tokens)
    z_loss = torch.stack([one.logsumexp(-1).square().sum() for one in logits]).sum()
    ((loss + weight * z_loss) / batch.labelled_tokens).backward()  # type: ignore[no-untyped-call]
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        moved = before[name] - dict(model.named_parameters())[name]
        torch.testing.assert_close(moved, parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_dense_model_has_no_routers() -> None:
    assert find_routers(tiny.decoder(), 0.1, 0.1) is None


def test_a_token_costs_the_experts_that_it_visits() -> None:
    dense = replace(ROUTED, experts=2, experts_per_token=2)
    router = 2 * 2 * 32  # two rows more in each of two blocks
    assert flops_per_token(ROUTED, 16) == flops_per_token(dense, 16) + 6 * router
    assert ARCHITECTURES["glm4_moe"].parameters > ARCHITECTURES["glm4_moe"].active_parameters


def test_an_inner_width_that_the_rules_refuse_is_one_that_torch_refuses() -> None:
    """MOD014: the width of an expert is a multiple of 8."""
    for width, works in ((24, True), (20, False)):
        experts = mixture(replace(ROUTED, expert_mlp_size=width)).experts.bfloat16()
        x, ends = torch.ones(4, 32, dtype=torch.bfloat16), torch.tensor([1, 2, 3, 4], dtype=torch.int32)
        if works:
            assert experts(x, ends).shape == (4, 32)
        else:
            with pytest.raises(RuntimeError, match="16 bytes"):
                experts(x, ends)
