"""AdamW and clipping against torch's plain forms, decay groups, and sharded gradients on two processes."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prime_train import spec
from prime_train.trainer.loops.step import adamw, clip_, set_lr
from prime_train.trainer.model.decoder import Decoder, build, config_of, cross_entropy_sum
from tests.system.trainer.two_ranks import run_on_two_ranks, shard

MODEL = spec.Model(layers=2, hidden_size=32, heads=2, kv_heads=1, qk_norm=True, tie_embeddings=False)
TOKENS = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.arange(12).expand(4, 12)


def decoder() -> Decoder:
    return build(config_of(MODEL, vocab_size=50), seed=0)


def backward(model: nn.Module) -> float:
    labels = TOKENS[:, 1:]
    mean = cross_entropy_sum(model(TOKENS, POSITIONS, None)[:, :-1], labels) / labels.numel()
    mean.backward()  # type: ignore[no-untyped-call]
    return float(mean.detach())


def test_matrices_decay_and_gains_do_not() -> None:
    model = decoder()
    matrices, gains = adamw(model, spec.Optim(weight_decay=0.3)).param_groups
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert matrices["weight_decay"] == 0.3
    assert gains["weight_decay"] == 0.0
    assert {names[id(weight)].split(".")[-2] for weight in gains["params"]} == {
        "attention_norm",
        "mlp_norm",
        "query_norm",
        "key_norm",
        "norm",
    }
    assert len(matrices["params"]) + len(gains["params"]) == len(names)
    assert "embedding.weight" in {names[id(weight)] for weight in matrices["params"]}


def test_frozen_weights_are_left_out() -> None:
    model = decoder()
    model.embedding.weight.requires_grad_(False)
    grouped = [weight for group in adamw(model, spec.Optim()).param_groups for weight in group["params"]]
    assert all(weight is not model.embedding.weight for weight in grouped)


def test_fused_steps_equal_the_plain_loop() -> None:
    ours, reference = decoder(), decoder()
    config = spec.Optim(lr=0.01, weight_decay=0.1)
    fused = adamw(ours, config)
    plain = torch.optim.AdamW(
        [
            {"params": [w for w in reference.parameters() if w.ndim >= 2], "weight_decay": 0.1},
            {"params": [w for w in reference.parameters() if w.ndim < 2], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
    )
    for step in range(5):
        for model, optimizer in ((ours, fused), (reference, plain)):
            backward(model)
            set_lr(optimizer, 0.01 / (step + 1))
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_step_lowers_the_loss() -> None:
    model = decoder()
    optimizer = adamw(model, spec.Optim(lr=0.01))
    losses = []
    for _ in range(5):
        losses.append(backward(model))
        optimizer.step()
        optimizer.zero_grad()
    assert losses == sorted(losses, reverse=True)


def gradients(*values: list[float]) -> list[nn.Parameter]:
    weights = [nn.Parameter(torch.zeros(len(value))) for value in values]
    for weight, value in zip(weights, values, strict=True):
        weight.grad = torch.tensor(value)
    return weights


def test_gradients_are_clipped_to_the_global_norm() -> None:
    weights = gradients([3.0, 0.0], [4.0])
    assert float(clip_(weights, 1.0)) == pytest.approx(5.0)
    clipped = torch.cat([weight.grad for weight in weights if weight.grad is not None])
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.0, 0.8]))


def test_small_gradients_are_left_alone() -> None:
    weights = gradients([0.3], [0.4])
    assert float(clip_(weights, 1.0)) == pytest.approx(0.5)
    assert [weight.grad for weight in weights] == [torch.tensor([0.3]), torch.tensor([0.4])]


def test_without_a_limit_the_norm_is_only_measured() -> None:
    weights = gradients([30.0], [40.0])
    weights.append(nn.Parameter(torch.zeros(1)))  # a weight that got no gradient
    assert float(clip_(weights, None)) == pytest.approx(50.0)
    assert weights[0].grad == torch.tensor([30.0])


def test_a_norm_that_is_not_a_number_is_reported() -> None:
    assert math.isnan(float(clip_(gradients([math.nan], [1.0]), 1.0)))


def _sharded_step(_: int) -> tuple[Tensor, dict[str, Tensor]]:
    model = decoder()
    shard(model)
    optimizer = adamw(model, spec.Optim(lr=0.01))
    backward(model)
    norm = clip_(model.parameters(), 0.05)
    optimizer.step()
    return norm, {name: weight.full_tensor() for name, weight in model.state_dict().items()}


def test_a_sharded_step_equals_a_whole_one(tmp_path: Path) -> None:
    """The same norm on both ranks, and the same weights after clip and update."""
    whole = decoder()
    optimizer = adamw(whole, spec.Optim(lr=0.01))
    backward(whole)
    expected_norm = clip_(whole.parameters(), 0.05)
    optimizer.step()
    for norm, weights in run_on_two_ranks(_sharded_step, tmp_path):
        torch.testing.assert_close(norm, expected_norm)
        torch.testing.assert_close(weights, dict(whole.state_dict()), rtol=1e-4, atol=1e-5)
