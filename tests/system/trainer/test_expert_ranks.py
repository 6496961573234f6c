"""Experts on several processes: with DDP and with FSDP2 the same weights, biases and loads as on one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from prime_train import spec
from prime_train.trainer import parallel
from prime_train.trainer.build import gather_weights
from prime_train.trainer.loops.step import Training, adamw, train_step
from prime_train.trainer.model.experts import find_routers
from prime_train.trainer.parallel import World
from tests.system.trainer.two_ranks import run_on_ranks
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES, loud

_STEPS, _MICRO_BATCHES = 4, 4


def train(world: World, dp_shard: int) -> dict[str, Any]:
    """The weights on rank 0, and the losses and loads of all steps. Each step has four micro-batches."""
    layout = spec.Parallel(processes=world.size, dp_shard=dp_shard)
    model = parallel.spread(loud(ARCHITECTURES["glm4_moe"]), world, layout, tiny.CPU)
    routers = find_routers(model, 0.01, 0.001)
    training = Training(model, adamw(model, spec.Optim()), world, tiny.CPU, 1.0, routers=routers)
    losses, loads = [], []
    for step in range(_STEPS):
        batches = [tiny.batch(_MICRO_BATCHES * step + number) for number in range(_MICRO_BATCHES)]
        result = train_step(training, batches[world.rank :: world.size], lr=1e-3)
        assert result.expert_load is not None
        losses.append(result.loss)
        loads.append(asdict(result.expert_load))
    return {"weights": gather_weights(model), "losses": losses, "loads": loads}


def _on_two(rank: int) -> list[dict[str, Any]]:
    return [train(World(rank, 2, local_size=2), shards) for shards in (1, 2)]


def _on_four(rank: int) -> list[dict[str, Any]]:
    return [train(World(rank, 4, local_size=4), shards) for shards in (1, 2, 4)]


@pytest.mark.parametrize(("count", "work"), [(2, _on_two), (4, _on_four)])
def test_ddp_fsdp2_and_hsdp_are_the_training_of_one_process(count: int, work: Any, tmp_path: Path) -> None:
    alone = train(World(0, 1), 1)
    ranks = run_on_ranks(count, work, tmp_path)
    assert all(any(weight.any() for weight in one["weights"].values()) for one in ranks[0])
    for found in (result for rank in ranks for result in rank):
        assert found["losses"] == pytest.approx(alone["losses"], abs=1e-4)
        assert found["loads"] == alone["loads"]
    for found in ranks[0]:
        assert found["weights"].keys() == alone["weights"].keys()
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(found["weights"][name], weight, rtol=0, atol=1e-4)
