"""Keeps the weights of the first RL step in the run directory, as the reference of the divergence term.

A file of its own and not part of the checkpoints, because it never changes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.trainer import parallel
from prime_train.trainer.build import gather_weights
from prime_train.trainer.loops.step import Training
from prime_train.trainer.model.decoder import Decoder, ModelConfig


def save_reference(run_dir: RunDir, training: Training) -> None:
    """Write the weights of the model, with adapters merged. Every process calls it; rank 0 writes."""
    weights = gather_weights(training.model)
    if training.world.rank == 0:
        path = reference_path(run_dir)
        partial = path.with_suffix(".partial")
        save_file({name: weight.detach().cpu().contiguous() for name, weight in weights.items()}, partial)
        partial.replace(path)
    training.world.share(None)  # no process reads the file before it is complete


def load_reference(run_dir: RunDir, config: ModelConfig, training: Training, layout: spec.Parallel) -> nn.Module:
    """A frozen model with the reference's weights, sharded like the trained one. Raises UserError without the file."""
    path = reference_path(run_dir)
    with torch.device("meta"):
        model = Decoder(replace(config, pad_vocab=False))  # the file has no padding
    model.to_empty(device="cpu")
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name, weight in model.state_dict().items():
                weight.copy_(file.get_tensor(name))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(
            what=f"the reference weights cannot be read: {error}",
            where=str(path),
            why="rl.kl_coef compares the model with that of the first RL step, which only this file has",
            fix="restore the file, or set rl.kl_coef = 0",
        ) from error
    model.requires_grad_(requires_grad=False)
    model.head_logprobs = parallel.unwrap(training.model).head_logprobs
    if layout.dp_shard > 1:  # FSDP2 moves its shards to the device, block by block
        return parallel.spread(model, training.world, layout, training.device)
    return model.to(training.device.torch)


def reference_path(run_dir: RunDir) -> Path:
    return run_dir.path / "reference.safetensors"
