"""Starts a run with the weights of another run's checkpoint, and on request with its optimizer's state."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from prime_train.checkpoints import layout
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.trainer.attempt import read_ranks
from prime_train.trainer.model import lora
from prime_train.trainer.model.decoder import ADAPTERS, Decoder

if TYPE_CHECKING:
    from prime_train.trainer.saves.dcp_reader import SavedTensors


@torch.no_grad()
def load_weights(model: Decoder, run: RunSpec) -> None:
    """Load the weights of `model.init_from` tensor by tensor; of a sharded model each process its part. UserError.

    For adapters the model must have them already, and the weights under them need not be in the checkpoint.
    """
    saved = open_checkpoint(run)
    shapes = {stored.name: stored.shape for stored in saved.list_tensors("model.")}
    weights = model.state_dict(keep_vars=True)
    adapters = {name for name in weights if name.endswith(ADAPTERS)}
    wanted = adapters if lora.has_adapters(shapes) else set(weights) - adapters
    for name in sorted(wanted | set(shapes)):
        ours = tuple(weights[name].shape) if name in weights else None
        if shapes.get(name) != ours:
            raise _other_model(saved, f"{name} is {shapes.get(name, 'not')} in it, and {ours or 'not'} in this run")
    for name in wanted:
        saved.load_into({"model": {name: weights[name].detach()}})


def find_content(run: RunSpec) -> Literal["weights", "adapters"] | None:
    """What the checkpoint of `model.init_from` holds: all weights, or adapters alone. None if the key is not set."""
    if run.model.init_from is None:
        return None
    names = [stored.name for stored in open_checkpoint(run).list_tensors("model.")]
    return "adapters" if lora.has_adapters(names) else "weights"


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, run: RunSpec) -> None:
    """Load moments and their number of steps, on every rank. Raises UserError where they are another optimizer's."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    saved = open_checkpoint(run)
    options = StateDictOptions(ignore_frozen_params=True, strict=all(each.requires_grad for each in model.parameters()))
    weights, state = get_state_dict(model, optimizer, options=options)
    known = {stored.name for stored in saved.list_tensors("optimizer.")}
    moments: dict[str, dict[str, Any]] = cast(Any, state["state"])  # by weight
    needed = {f"{name}.{key}" for name, values in moments.items() for key in values}
    if missing := needed - known:
        raise _other_model(saved, f"{len(missing)} values of the optimizer are not in it, first {min(missing)}")
    saved.load_into({"optimizer": moments})
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state, options=options)


@cache
def _open(folder: Path) -> SavedTensors:
    """A complete checkpoint whose bytes are as they were saved. The processes of a machine share the comparison."""
    ranks = read_ranks(os.environ)
    if problem := layout.problem(folder, on_read=lambda _: None, part=ranks.local_rank, parts=ranks.local_size):
        what = f"{folder.name} cannot be used: {problem}"
        fix = "choose another one with model.init_step: prime-train ckpt list shows them"
        raise UserError(what, "model.init_from", "only a complete checkpoint has all weights of its step", fix)
    from prime_train.trainer.saves.dcp_reader import SavedTensors  # imports DCP, which takes half a second

    return SavedTensors(folder)


def open_checkpoint(run: RunSpec) -> SavedTensors:
    """The checkpoint that `model.init_from` and `model.init_step` name. Raises UserError."""
    assert run.model.init_from is not None
    assert run.model.init_step is not None, "the supervisor has chosen the step"
    return _open(RunDir(Path(run.model.init_from)).checkpoint(run.model.init_step))


def _other_model(saved: SavedTensors, difference: str) -> UserError:
    why = "a run that begins with weights must have the model that they are for"
    fix = "set [model] and [optim] as in the other run, or use `prime-train ckpt to-hf` and model.path"
    return UserError(f"{saved.folder.name} belongs to another model: {difference}", "model.init_from", why, fix)
