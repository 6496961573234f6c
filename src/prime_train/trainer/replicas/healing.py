"""The training of one replica as a value that another one takes over: what a checkpoint has. Sends nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from prime_train.trainer import seed
from prime_train.trainer.saves.checkpoint import TrainPosition, gather

State = dict[str, Any]


def read_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, reached: TrainPosition, beside: Mapping[str, Any]
) -> State:
    """`beside`: what a checkpoint does not need, as changes of settings for steps to come: JSON-able."""
    return gather(model, optimizer, reached, 0) | {"beside": json.dumps(beside)}


def load_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: State
) -> tuple[TrainPosition, dict[str, Any]]:
    """Load what `read_training` returned; returns the position and what was beside it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    options = StateDictOptions(ignore_frozen_params=True, strict=all(each.requires_grad for each in model.parameters()))
    _, own = get_state_dict(model, optimizer, options=options)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict={"state": state["optimizer"], "param_groups": own["param_groups"]},
        options=options,
    )
    seed.set_rng_state(json.loads(state["generators_0"]))
    return TrainPosition(**json.loads(state["reached"])), json.loads(state["beside"])
