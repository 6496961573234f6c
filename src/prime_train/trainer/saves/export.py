"""Exports the weights of a run as a Hugging Face folder: a live model's, or those of a checkpoint.

Weights are read in portions and written as they come, so no process needs the whole model beside its own part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.build import build_model
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training
from prime_train.trainer.model import hf, lora
from prime_train.trainer.model.decoder import VOCAB_ROWS, ModelConfig, parameter_shapes
from prime_train.trainer.tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    from prime_train.trainer.saves.dcp_reader import SavedTensors  # imports DCP, which takes half a second

CPU = Device(torch.device("cpu"), "CPU", "fp32", None)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def export(attempt: Attempt, training: Training, config: ModelConfig, tokenizer: LoadedTokenizer) -> Path:
    """Write the folder `final` of the run; returns its path. Every rank calls it, when no save is in progress."""
    rows = ModelRows(training.model, attempt.rank, training.world.saving)
    described = describe(attempt.run, tokenizer)
    if attempt.rank == 0:
        hf.save_rows(attempt.run_dir.final, config, rows, described)
    else:
        for _ in hf.read_pieces(config, rows, described.dtype):
            raise AssertionError("only rank 0 gets the weights")
    return attempt.run_dir.final


def describe(run: RunSpec, tokenizer: LoadedTokenizer) -> hf.Export:
    """What the folder holds besides the weights. A model that came from a folder keeps its context length."""
    described = hf.Export(
        ctx_tokens=run.data.ctx_tokens,
        stop_token=tokenizer.eos_id,
        tokenizer_files=tokenizer.files,
        dtype=DTYPES[run.checkpoint.export_dtype],
    )
    if run.model.path is None:
        return described
    folder = Path(run.model.path)
    generation = folder / hf.GENERATION_CONFIG
    return replace(
        described,
        ctx_tokens=max(run.data.ctx_tokens, hf.read_ctx_tokens(folder)),
        generation_config=generation if generation.is_file() else None,
    )


class ModelRows:
    """Rows of a live model's parameters, with adapters merged, on rank 0. Every rank calls it in the same order."""

    def __init__(self, model: nn.Module, rank: int, group: dist.ProcessGroup | None) -> None:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict  # half a second: not at start

        self._weights: dict[str, Any] = get_model_state_dict(model)  # a sharded model's stay sharded
        self._scale = lora.find_scale(model)
        self._rank, self._group = rank, group
        self._merged: tuple[str, Tensor | None] = ("", None)

    def __call__(self, name: str, start: int, stop: int) -> Tensor | None:
        if self._scale is None or not lora.parts_of(name, self._weights):
            return self._rows(name, start, stop)
        if self._merged[0] != name:  # as a whole, because a product of fewer rows may round differently
            self._merged = name, self._merge(name, self._scale)
        merged = self._merged[1]
        return None if merged is None else merged[start:stop]

    def _merge(self, name: str, scale: float) -> Tensor | None:
        parts = (name, *lora.parts_of(name, self._weights))
        whole = {part: self._rows(part, 0, len(self._weights[part])) for part in parts}
        present = {part: weight for part, weight in whole.items() if weight is not None}
        return lora.merge_adapters(present, scale)[name] if present else None

    def _rows(self, name: str, start: int, stop: int) -> Tensor | None:
        weight: Tensor = self._weights[name].detach()
        if isinstance(weight, DTensor):
            return _gather_rows(weight, start, stop, self._rank, self._group)
        return weight[start:stop].cpu() if self._rank == 0 else None


def _gather_rows(weight: DTensor, start: int, stop: int, rank: int, group: dist.ProcessGroup | None) -> Tensor | None:
    """Rows `start` to `stop` on rank 0; None on the others, which send theirs. `group` carries CPU tensors."""
    sharded = [number for number, placement in enumerate(weight.placements) if not isinstance(placement, Replicate)]
    placement = weight.placements[sharded[0]] if len(sharded) == 1 else None
    if type(placement) is not Shard or placement != Shard(0):
        whole = weight.full_tensor()
        return whole[start:stop].cpu() if rank == 0 else None
    local = weight.to_local()
    owners = weight.device_mesh.mesh.movedim(sharded[0], 0).reshape(weight.device_mesh.size(sharded[0]), -1)[:, 0]
    # owners: the rank of each shard, in the first replica
    rows = torch.empty((stop - start, *weight.shape[1:]), dtype=weight.dtype) if rank == 0 else None
    shard_rows = -(-weight.shape[0] // len(owners))  # as torch.chunk divides: FSDP2 shards so (torch 2.13)
    for number, owner in enumerate(owners.tolist()):
        first = number * shard_rows
        low, high = max(start, first), min(stop, first + shard_rows)
        if low >= high:
            continue
        if rows is not None and owner == 0:
            rows[low - start : high - start] = local[low - first : high - first]
        elif rows is not None:
            dist.recv(rows[low - start : high - start], owner, group=group)
        elif rank == owner:
            dist.send(local[low - first : high - first].cpu().contiguous(), 0, group=group)
    return rows


def open_rows(run: RunSpec, config: ModelConfig, saved: SavedTensors) -> hf.Rows:
    """The rows of a checkpoint's weights. With adapters the model is loaded as a whole, because they are merged."""
    if run.model.lora is None:
        return CheckpointRows(saved, config)
    model = build_model(replace(run, model=replace(run.model, compile=False)), config, CPU, resumes=True)
    adapters = {stored.name: saved.load(f"model.{stored.name}") for stored in saved.list_tensors("model.")}
    missing, unexpected = model.load_state_dict(adapters, strict=False)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    if unexpected or trained.intersection(missing):
        raise _other_model(saved, "its adapters are on other layers")
    return ModelRows(model, rank=0, group=None)


class CheckpointRows:
    """Rows of the parameters in a checkpoint. Holds one parameter in memory. UserError where it has another model."""

    def __init__(self, saved: SavedTensors, config: ModelConfig) -> None:
        self._saved = saved
        self._held: tuple[str, Tensor] = ("", torch.empty(0))
        shapes = {stored.name: stored.shape for stored in saved.list_tensors("model.")}
        for name, used in parameter_shapes(config).items():
            shape = (config.vocab_rows, *used[1:]) if name in VOCAB_ROWS else used
            if shapes.get(name) != shape:
                raise _other_model(saved, f"{name} is {shapes.get(name, 'not')} in it, and {shape} in the config")

    def __call__(self, name: str, start: int, stop: int) -> Tensor:
        if self._held[0] != name:
            self._held = ("", torch.empty(0))  # free it before the next one is allocated
            self._held = name, self._saved.load(f"model.{name}")
        return self._held[1][start:stop]


def _other_model(saved: SavedTensors, difference: str) -> UserError:
    what = f"{saved.folder.name} belongs to another model: {difference}"
    fix = "put back the model folder and the tokenizer with which the run was trained"
    return UserError(what, str(saved.folder), "resolved.json of the run describes the model of its checkpoints", fix)
