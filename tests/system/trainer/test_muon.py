"""Muon against a reference of its own, its groups, its states in a checkpoint, and shards against whole matrices."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prime_train import spec
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.model.shape import shape_from_run
from prime_train.programs.fixed_settings import list_changes
from prime_train.spec.rl import Adapter
from prime_train.trainer.loops.step import Training, set_lr, train_step
from prime_train.trainer.model import lora
from prime_train.trainer.model.decoder import Decoder, config_of
from prime_train.trainer.muon import build_optimizer
from prime_train.trainer.parallel import World
from prime_train.trainer.saves import resume
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from tests.system.trainer.two_ranks import run_on_two_ranks, shard
from tests.unit.trainer import tiny

MUON = spec.Optim(kind="muon", lr=0.003, muon_lr=0.02, muon_momentum=0.9, weight_decay=0.1)


def training(model: nn.Module, config: spec.Optim = MUON) -> Training:
    return Training(model, build_optimizer(model, config), World(0, 1), tiny.CPU, 1.0)


def orthogonal(matrix: Tensor) -> Tensor:
    """Five Newton-Schulz steps in bf16. Source: https://kellerjordan.github.io/posts/muon."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        # In the article's two products; each addmm rounds to bf16 once, where a product and a sum would round twice.
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).float()


def test_a_step_is_that_of_the_reference() -> None:
    """Of the article's update, with the scale and the decay of arXiv 2502.16982, eq. 4."""
    made = training(tiny.decoder())
    moment: dict[str, Tensor] = {}
    for number in range(3):
        before = {name: weight.detach().clone() for name, weight in made.model.named_parameters()}
        gradients = gradients_of(made.model, number)
        train_step(made, [tiny.batch(number)], lr=0.0015)
        for name, weight in made.model.named_parameters():
            if weight.ndim < 2 or not name.startswith("blocks."):
                continue
            moment[name] = moment.get(name, torch.zeros_like(weight)).lerp(gradients[name], 0.1)
            update = orthogonal(gradients[name].lerp(moment[name], 0.9))
            scaled = 0.2 * math.sqrt(max(weight.shape)) * update
            expected = before[name] - 0.01 * (scaled + 0.1 * before[name])  # half of muon_lr, as of lr
            torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-6, msg=name)


def gradients_of(model: nn.Module, number: int) -> dict[str, Tensor]:
    """The clipped gradients of the step that follows."""
    copy = tiny.decoder()
    copy.load_state_dict(model.state_dict())
    made = training(copy)
    seen: dict[str, Tensor] = {}

    def look() -> None:
        seen.update({name: weight.grad.clone() for name, weight in copy.named_parameters() if weight.grad is not None})

    train_step(made, [tiny.batch(number)], lr=0.0, before_update=look)
    return seen


def test_it_is_torchs_muon_and_adamw_side_by_side_to_the_bit() -> None:
    ours, theirs = tiny.decoder(), tiny.decoder()
    made = training(ours)
    blocks = [weight for name, weight in theirs.named_parameters() if name.startswith("blocks.") and weight.ndim == 2]
    rest = [weight for name, weight in theirs.named_parameters() if weight.ndim == 1]
    muon = torch.optim.Muon(blocks, lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    groups = [{"params": [theirs.embedding.weight], "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=0.003, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for number in range(3):
        gradients = gradients_of(ours, number)
        train_step(made, [tiny.batch(number)], lr=0.003)
        for name, weight in theirs.named_parameters():
            weight.grad = gradients[name]
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()
    for name, weight in ours.named_parameters():
        assert torch.equal(weight, theirs.get_parameter(name)), name


def test_the_groups_are_matrices_of_blocks_and_the_rest() -> None:
    model = tiny.decoder()
    names = {id(weight): name for name, weight in model.named_parameters()}
    muon, matrices, gains = build_optimizer(model, MUON).param_groups
    assert len(muon["params"]) == 2 * 7
    assert all(names[id(weight)].startswith("blocks.") for weight in muon["params"])
    assert [names[id(weight)] for weight in matrices["params"]] == ["embedding.weight"]
    assert len(gains["params"]) == 5
    set_lr(build := build_optimizer(model, MUON), 0.0015)
    assert [group["lr"] for group in build.param_groups] == pytest.approx([0.01, 0.0015, 0.0015])
    set_lr(same := build_optimizer(model, replace(MUON, muon_lr=None)), 0.0015)
    assert [group["lr"] for group in same.param_groups] == [0.0015] * 3


@pytest.mark.parametrize("experts", [0, 8])
def test_the_estimate_counts_the_moments_that_the_optimizer_keeps(experts: int) -> None:
    """Stacked experts are no matrices, so AdamW keeps two moments of them."""
    sizes = spec.Model(layers=2, hidden_size=64, heads=2, mlp_size=128, experts=experts, expert_mlp_size=64)
    run = replace(tiny.run_spec(Path("nowhere")), model=sizes, optim=MUON)
    model = Decoder(config_of(sizes, 64))
    optimizer = build_optimizer(model, run.optim)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    kept_bytes = sum(moment.nbytes for moment in moments) / sum(weight.numel() for weight in model.parameters())
    estimated = setup_of(run, hardware_from_name("1xh100-80gb"), shape_from_run(run, 64)).numerics.state
    assert estimated == pytest.approx(kept_bytes, rel=0.01)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_embeddings_decay_unless_the_config_forbids_it(family: str, kind: str) -> None:
    model = tiny.decoder() if family == "llama" else Decoder(replace(tiny.CONFIG, learned_positions=32))
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    assert len(embeddings) == (1 if family == "llama" else 2)
    for decays in (True, False):
        optimizer = build_optimizer(model, spec.Optim(kind=kind, decay_embeddings=decays))  # type: ignore[arg-type]
        decayed = [weight for group in optimizer.param_groups if group["weight_decay"] for weight in group["params"]]
        assert all(any(weight is one for one in decayed) == decays for weight in embeddings)
        assert not any(weight.ndim < 2 for weight in decayed)


def test_a_resumed_run_takes_the_steps_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    run = replace(tiny.run_spec(tmp_path), optim=MUON)
    run_dir = tiny.prepare(tmp_path / "run", run)
    straight = training(tiny.decoder())
    train_step(straight, [tiny.batch(1)], lr=0.003)
    checkpointer = Checkpointer(tiny.attempt(run_dir, run), straight.world, tiny.CPU.torch)
    checkpointer.save(straight.model, straight.optimizer, TrainPosition(1, 100))
    checkpointer.finish()
    resumed = training(tiny.decoder(seed=9))
    resume.load(tiny.attempt(run_dir, run, resume_step=1), resumed.model, resumed.optimizer, resumed.world)
    for made in (straight, resumed):
        train_step(made, [tiny.batch(2)], lr=0.002)
    for name, weight in straight.model.named_parameters():
        assert torch.equal(weight, resumed.model.get_parameter(name)), name


def test_adapters_are_matrices_of_blocks() -> None:
    model = tiny.decoder()
    lora.add_adapters(model, Adapter(rank=2), 1)
    made = training(model)
    train_step(made, [tiny.batch(1)], lr=0.003)
    assert all("momentum_buffer" in state for state in made.optimizer.state.values())


def test_the_optimizer_of_a_run_is_fixed_and_its_rates_are_not(tmp_path: Path) -> None:
    before = tiny.run_spec(tmp_path)
    changed = list(list_changes(before, replace(before, optim=MUON)))
    assert [change.name for change in changed] == ["optim.kind"]
    assert not list(list_changes(before, replace(before, optim=spec.Optim(lr=0.5, decay_embeddings=False))))


def _take_steps(model: Decoder) -> None:
    """Without clipping: the norm of shards may differ in its last bit, which bf16 turns into a bit of an update."""
    made = replace(training(model), clip_norm=None)
    for number in range(3):
        train_step(made, [tiny.batch(number)], lr=0.003)


def _sharded_steps(_: int) -> dict[str, Tensor]:
    model = tiny.decoder()
    shard(model)
    _take_steps(model)
    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}


def test_sharded_steps_equal_whole_ones(tmp_path: Path) -> None:
    whole = tiny.decoder()
    _take_steps(whole)
    for weights in run_on_two_ranks(_sharded_steps, tmp_path):
        torch.testing.assert_close(weights, dict(whole.state_dict()), rtol=1e-6, atol=1e-6)
