from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prime_train import spec
from prime_train.spec.rl import Adapter
from prime_train.trainer.build import gather_weights
from prime_train.trainer.loops.step import Training, adamw, train_step
from prime_train.trainer.model.decoder import Decoder, build, parameter_shapes
from prime_train.trainer.model.lora import AdaptedLinear, add_adapters, find_scale, merge_adapters
from prime_train.trainer.parallel import World
from prime_train.trainer.saves.checkpoint import TrainPosition, gather
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES, loud

ADAPTER = Adapter(rank=4, alpha=8.0)
ALONE = World(rank=0, size=1)


def logits(model: torch.nn.Module) -> Tensor:
    batch = tiny.batch(5)
    made: Tensor = model(batch.tokens, batch.positions, None)
    return made


def adapted(adapter: Adapter = ADAPTER) -> Decoder:
    model = tiny.decoder()
    add_adapters(model, adapter, run_seed=3)
    return model


def trained(steps: int = 3) -> Decoder:
    model = adapted()
    training = Training(model, adamw(model, spec.Optim()), ALONE, tiny.CPU, None)
    for seed in range(steps):
        train_step(training, [tiny.batch(seed)], lr=1e-2)
    return model


def test_new_adapters_change_nothing() -> None:
    assert torch.equal(logits(adapted()), logits(tiny.decoder()))


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "glm4_moe"])
def test_new_adapters_change_nothing_in_any_family(name: str) -> None:
    model, plain = loud(ARCHITECTURES[name]), loud(ARCHITECTURES[name])
    add_adapters(model, ADAPTER, run_seed=3)
    assert torch.equal(logits(model), logits(plain))
    merged = gather_weights(model)
    assert {key: tuple(weight.shape) for key, weight in merged.items()} == parameter_shapes(plain.config)


def test_only_adapters_are_trained() -> None:
    model, before = trained(), tiny.decoder().state_dict()
    for name, weight in model.state_dict().items():
        if name in before:
            assert torch.equal(weight, before[name]), name
    assert {name.rpartition(".")[2] for name, weight in model.named_parameters() if weight.requires_grad} == {
        "lora_down",
        "lora_up",
    }


def test_merged_weights_compute_what_the_adapted_model_computes() -> None:
    model = trained()
    plain = build(tiny.CONFIG, seed=9)
    merged = gather_weights(model)
    assert {name: tuple(weight.shape) for name, weight in merged.items()} == parameter_shapes(tiny.CONFIG)
    plain.load_state_dict(merged)
    torch.testing.assert_close(logits(plain), logits(model), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(plain), logits(tiny.decoder()), atol=1e-3)


def test_merging_leaves_the_model_as_it_is() -> None:
    model = trained()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    gather_weights(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_only_the_targets_get_adapters() -> None:
    model = adapted(Adapter(rank=2, targets=("query", "down")))
    names = {name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, AdaptedLinear)}
    assert names == {"query", "down"}


def test_the_same_seed_gives_the_same_adapters() -> None:
    one, other = adapted().state_dict(), adapted().state_dict()
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_a_checkpoint_has_the_adapters_alone() -> None:
    model = trained()
    state = gather(model, adamw(model, spec.Optim()), TrainPosition(), rank=0)
    assert {name.rpartition(".")[2] for name in state["model"]} == {"lora_down", "lora_up"}


def test_a_model_without_adapters_has_no_scale_and_is_merged_as_it_is() -> None:
    assert find_scale(tiny.decoder()) is None
    assert find_scale(adapted()) == pytest.approx(2.0)
    weights = tiny.decoder().state_dict()
    assert merge_adapters(weights, 1.0) == weights
