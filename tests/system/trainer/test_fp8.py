"""Blocks whose products are rounded to fp8: refused where they cannot be, else the same weights and nearly the numbers.

A CPU emulates fp8; what torch's fp8 product takes is compared on the meta device, which checks sizes and types.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.events import TrainerStarted
from prime_train.programs.fixed_settings import list_changes
from prime_train.trainer.build import announce, build_model, gather_weights, join, refuse_conflicts
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training, adamw, loss_sum, train_step
from prime_train.trainer.model import block_changes
from prime_train.trainer.model.block_changes import Scales, convert_blocks, describe_layers, linear_layers, require_fp8
from prime_train.trainer.model.decoder import Decoder, ModelConfig, build
from prime_train.trainer.parallel import World
from prime_train.trainer.saves import resume
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from tests.system.trainer.two_ranks import run_on_two_ranks, shard
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed: pip install 'prime-train[fp8]'"
)
both_scales = pytest.mark.parametrize("scales", ["tensorwise", "rowwise"])
GPU = Device(torch.device("cuda", 0), "NVIDIA H200", "bf16", 1e15)
ALONE = World(rank=0, size=1)
BATCH = tiny.batch(1, rows=4, ctx_tokens=32)


def run_spec(scales: Any = "rowwise", **parts: Any) -> spec.RunSpec:
    return tiny.run_spec(Path("texts"), precision=spec.Precision(fp8=scales), **parts)


def decoder(scales: Scales = "rowwise", config: ModelConfig = tiny.CONFIG) -> Decoder:
    model = build(config, seed=1)
    convert_blocks(model, scales, emulate=True)
    return model


def training(model: nn.Module) -> Training:
    return Training(model, adamw(model, spec.Optim()), ALONE, tiny.CPU, 1.0)


def difference(found: Tensor, expected: Tensor) -> float:
    """How far two tensors are apart, relative to the second."""
    found, expected = found.detach().float(), expected.detach().float()
    return float((found - expected).norm() / expected.norm())


# --- what is refused -------------------------------------------------------------------------------


def test_a_cpu_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = run_spec()
    with pytest.raises(UserError, match="only GPUs") as refused:
        join(tiny.attempt(tiny.prepare(tmp_path, run), run))
    assert (refused.value.where, refused.value.fix) == ("precision.fp8", 'precision.fp8 = "none"')


@pytest.mark.parametrize(
    ("capability", "compute", "is_installed", "fix"),
    [
        ((8, 0), "bf16", True, 'precision.fp8 = "none"'),
        ((9, 0), "fp32", True, 'precision.compute = "bf16"'),
        ((9, 0), "bf16", False, "[fp8]"),
        ((8, 9), "bf16", True, None),
    ],
)
def test_a_gpu_without_fp8_and_a_missing_package_are_refused(
    capability: tuple[int, int],
    compute: Literal["fp32", "bf16"],
    is_installed: bool,
    fix: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(block_changes, "find_spec", lambda name: name if is_installed else None)
    device = replace(GPU, compute=compute)
    if fix is None:
        require_fp8(device)
        return
    with pytest.raises(UserError) as refused:
        require_fp8(device)
    assert refused.value.where == "precision.fp8"
    assert fix in refused.value.fix


def test_the_trainer_asks_again_whether_the_settings_fit() -> None:
    refuse_conflicts(run_spec(), tiny.CONFIG)
    with pytest.raises(UserError, match="multiples of 16") as refused:
        refuse_conflicts(run_spec(), replace(tiny.CONFIG, hidden_size=40))
    assert refused.value.where == "precision.fp8"
    rows = replace(run_spec().data, ctx_tokens=33)
    with pytest.raises(UserError, match="not a multiple of 16") as refused:
        refuse_conflicts(run_spec(data=rows), tiny.CONFIG)
    assert refused.value.fix == "data.ctx_tokens = 32"


# --- which layers, and their names -----------------------------------------------------------------


def test_the_start_names_the_layers_that_stay(tmp_path: Path) -> None:
    run, config = run_spec(), replace(tiny.CONFIG, mlp_size=72)
    model = build(config, seed=1)
    assert describe_layers(model) == "fp8 in 8 of 14 linear layers of the blocks"
    attempt = tiny.attempt(tiny.prepare(tmp_path, run), run)
    announce(attempt, training(model), config.vocab_size)
    (started,) = (event for event in tiny.events(attempt.run_dir) if isinstance(event, TrainerStarted))
    assert started.precision == "fp32, fp8 in 8 of 14 linear layers of the blocks"


def test_it_may_change_between_attempts() -> None:
    assert [*list_changes(run_spec("none"), run_spec("rowwise"))] == []
    assert [*list_changes(run_spec("tensorwise"), run_spec("none"))] == []


@needs_torchao
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_and_names_of_every_family_stay(name: str) -> None:
    config = ARCHITECTURES[name]
    plain, converted = build(config, seed=1), decoder(config=config)
    expected = plain.state_dict()
    found = converted.state_dict()
    assert list(found) == list(expected)
    assert list(dict(converted.named_parameters())) == list(dict(plain.named_parameters()))
    assert all(type(found[each]) is Tensor and torch.equal(found[each], expected[each]) for each in expected)
    assert gather_weights(converted).keys() == gather_weights(plain).keys()


@needs_torchao
def test_only_layers_of_blocks_that_fit_are_converted() -> None:
    config = replace(
        tiny.CONFIG, tie_embeddings=False, experts=4, experts_per_token=2, expert_mlp_size=24, shared_experts=2
    )
    model = decoder(config=config)
    changed = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    changed = {name for name in changed if type(model.get_submodule(name)) is not nn.Linear}
    parts = ("attention.query", "attention.key", "attention.value", "attention.output")
    shared = ("mlp.shared.gate", "mlp.shared.up", "mlp.shared.down")
    assert changed == {f"blocks.{block}.{part}" for block in range(2) for part in (*parts, *shared)}
    assert describe_layers(model) == "fp8 in 14 of 14 linear layers of the blocks"


# --- numbers ---------------------------------------------------------------------------------------


@needs_torchao
@both_scales
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_that_of_bf16_within_the_rounding_of_fp8(scales: Scales, dtype: torch.dtype) -> None:
    """Three bits of mantissa round by 2.6 % on average, two, of gradients with tensorwise scales, by 5.2 %."""
    layer = next(linear_layers(decoder(scales)))
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(4, 32, 32, generator=draw).to(dtype).requires_grad_()
    upstream = torch.randn(4, 32, 32, generator=draw).to(dtype)
    found = layer(x)
    found.backward(upstream)
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert (found.dtype, x.grad.dtype, layer.weight.grad.dtype) == (dtype, dtype, torch.float32)
    rows, gradients = x.detach().float(), upstream.float()
    expected = (rows @ layer.weight.T, gradients @ layer.weight, gradients.flatten(0, 1).T @ rows.flatten(0, 1))
    for one, other in zip((found, x.grad, layer.weight.grad), expected, strict=True):
        assert 0.01 < difference(one, other) < 0.08


@needs_torchao
@both_scales
def test_the_backward_keeps_the_input_and_the_weight_alone(scales: Scales) -> None:
    """So the estimate counts what bf16 keeps."""
    layer, kept = next(linear_layers(decoder(scales))), []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    x = torch.randn(1, 16, 32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    assert {each.data_ptr() for each in kept} == {x.data_ptr(), layer.weight.data_ptr()}


@needs_torchao
@both_scales
@settings(max_examples=8)
@given(inner=st.integers(1, 6), outer=st.integers(1, 6), rows=st.integers(1, 6), bias=st.booleans())
def test_torch_takes_every_layer_that_fits(scales: Scales, inner: int, outer: int, rows: int, bias: bool) -> None:
    """The product of GPUs, on the meta device: it checks sizes, strides and types, and computes nothing."""
    blocks = meta_layer(16 * inner, 16 * outer, scales, bias)
    x = torch.empty(1, 16 * rows, 16 * inner, dtype=torch.bfloat16, device="meta", requires_grad=True)
    product = blocks(x)
    product.sum().backward()
    assert product.dtype == torch.bfloat16
    assert [weight.grad is not None and weight.grad.dtype for weight in blocks.parameters()] == [torch.float32] * (
        1 + bias
    )


@needs_torchao
@both_scales
def test_torch_takes_tokens_by_sixteen_and_sizes_by_sixteen(scales: Scales) -> None:
    """Why data.ctx_tokens is a multiple of 16, and why other layers stay as they are."""
    layer = meta_layer(32, 48, scales)
    product = layer(torch.empty(1, 24, 32, dtype=torch.bfloat16, device="meta"))
    with pytest.raises(RuntimeError, match="divisible by 16"):
        product.sum().backward()
    assert type(meta_layer(32, 40, scales)) is nn.Linear
    assert type(meta_layer(40, 32, scales)) is nn.Linear


def meta_layer(inner: int, outer: int, scales: Scales, bias: bool = False) -> nn.Module:
    with torch.device("meta"):
        model = Decoder(replace(tiny.CONFIG, layers=1))
        model.blocks[0].attention.query = nn.Linear(inner, outer, bias)  # type: ignore[union-attr]
    convert_blocks(model, scales)
    return next(linear_layers(model))


@needs_torchao
@both_scales
def test_a_tiny_training_learns_as_one_without(scales: Scales) -> None:
    losses = {}
    for name, model in (("fp8", decoder(scales)), ("plain", tiny.decoder())):
        made = training(model)
        losses[name] = [train_step(made, [BATCH], lr=0.01).loss for _ in range(12)]
    assert losses["fp8"] != losses["plain"]
    assert losses["fp8"][-1] < 0.8 * losses["fp8"][0]
    assert losses["fp8"] == pytest.approx(losses["plain"], rel=0.05)


@needs_torchao
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_activations_give_the_same_gradients(recompute: Any) -> None:
    def gradients(recompute: Any) -> dict[str, Tensor]:
        run = run_spec(model=replace(run_spec().model, recompute=recompute))
        model = build_model(run, tiny.CONFIG, tiny.CPU, resumes=False)
        loss_sum(model, BATCH, tiny.CPU).backward()  # type: ignore[no-untyped-call]
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    expected, found = gradients("none"), gradients(recompute)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@needs_torchao
def test_a_compiled_block_is_one_graph_that_recomputes() -> None:
    """Compiled for the gradients, too, by the backend without a code generator."""
    run = run_spec(model=replace(run_spec().model, recompute="selective"))
    models = [build_model(run, tiny.CONFIG, tiny.CPU, resumes=False) for _ in range(2)]
    for block in models[0].blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    losses = []
    for model in models:
        loss = loss_sum(model, BATCH, tiny.CPU)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert difference(one.grad, other.grad) < 1e-3


# --- checkpoints and several processes -------------------------------------------------------------


@needs_torchao
@pytest.mark.parametrize(("before", "after"), [("rowwise", "none"), ("none", "tensorwise"), ("rowwise", "rowwise")])
def test_a_checkpoint_goes_on_with_and_without(before: Any, after: Any, tmp_path: Path) -> None:
    def started(scales: Any) -> Training:
        return training(build_model(run_spec(scales), tiny.CONFIG, tiny.CPU, resumes=False))

    run_dir = tiny.prepare(tmp_path / "run", run_spec(before))
    first = started(before)
    train_step(first, [BATCH], lr=0.01)
    saving = Checkpointer(tiny.attempt(run_dir, run_spec(before)), ALONE, tiny.CPU.torch)
    saving.prepare(first.model, first.optimizer)
    saving.save(first.model, first.optimizer, TrainPosition(1, 28))
    saving.finish()

    second = started(after)
    attempt = tiny.attempt(run_dir, run_spec(after), resume_step=1, number=2)
    assert resume.load(attempt, second.model, second.optimizer, ALONE) == TrainPosition(1, 28)
    expected = first.model.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in second.model.state_dict().items())
    losses = [train_step(one, [tiny.batch(2)], lr=0.01).loss for one in (first, second)]
    assert losses[0] == losses[1] if before == after else losses[0] == pytest.approx(losses[1], rel=0.01)


def _sharded_step(rank: int) -> tuple[list[str], list[bool], float, dict[str, Any]]:
    model = decoder("rowwise")
    shard(model)
    rows = slice(2 * rank, 2 * rank + 2)
    batch = replace(
        BATCH, **{name: getattr(BATCH, name)[rows] for name in ("tokens", "labels", "positions", "documents")}
    )
    made = replace(training(model), world=World(rank, 2))
    loss = train_step(made, [batch], lr=0.01).loss
    plain = [isinstance(weight, DTensor) and weight.dtype == torch.float32 for weight in model.parameters()]
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return list(whole), plain, loss, dict(whole)


@needs_torchao
def test_shards_are_plain_and_train_as_one_process(tmp_path: Path) -> None:
    alone = training(decoder("rowwise"))
    loss = train_step(alone, [BATCH], lr=0.01).loss
    expected = alone.model.state_dict()
    first, second = run_on_two_ranks(_sharded_step, tmp_path)
    assert first[0] == second[0] or second[0] == []  # rank 0 has the whole
    assert list(first[0]) == list(expected)
    assert all(first[1])
    assert first[2] == pytest.approx(loss, rel=1e-5)  # each row has a scale of its own
    assert first[3].keys() == expected.keys()
    assert all(type(weight) is Tensor and weight.dtype == torch.float32 for weight in first[3].values())
