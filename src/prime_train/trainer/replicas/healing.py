"""The training of one rank as a value that the same rank of another replica takes over. Sends nothing.

It is what a checkpoint has of this rank. A shard goes without its place in the mesh, because the mesh of each replica
is its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from prime_train.trainer import seed
from prime_train.trainer.parallel import read_local
from prime_train.trainer.saves.checkpoint import TrainPosition, gather

State = dict[str, Any]


def read_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, reached: TrainPosition, beside: Mapping[str, Any]
) -> State:
    """`beside`: what a checkpoint does not need, as changes of settings for steps to come: JSON-able."""
    state: State = _map_tensors(read_local, gather(model, optimizer, reached, 0))
    return state | {"beside": json.dumps(beside)}


def load_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: State
) -> tuple[TrainPosition, dict[str, Any]]:
    """Load what `read_training` returned; returns the position and what was beside it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    options = StateDictOptions(ignore_frozen_params=True, strict=all(each.requires_grad for each in model.parameters()))
    weights, own = get_state_dict(model, optimizer, options=options)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=_take_places(state["model"], weights),
        optim_state_dict={"state": _take_places(state["optimizer"], own["state"]), "param_groups": own["param_groups"]},
        options=options,
    )
    seed.set_rng_state(json.loads(state["generators_0"]))
    return TrainPosition(**json.loads(state["reached"])), json.loads(state["beside"])


def _map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _map_tensors(change, inner) for key, inner in value.items()}
    return change(value) if isinstance(value, Tensor) else value


def _take_places(received: Any, own: Any) -> Any:
    """What was received, each shard in the place of the own one."""
    if isinstance(received, Mapping):
        return {key: _take_places(value, own[key]) if key in own else value for key, value in received.items()}
    if not isinstance(own, DTensor):
        return received
    shard = received.to(own.to_local().device)
    return DTensor(shard, own._spec, requires_grad=False)  # type: ignore[no-untyped-call]
