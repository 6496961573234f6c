"""Joins the training processes and spreads a model over them: plain, DDP or FSDP2. Trains nothing."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in its __all__ (torch 2.13)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from prime_train import spec
from prime_train.errors import ExitCode, UserError
from prime_train.trainer.device import Device
from prime_train.trainer.model import Decoder

# Whether a silence is a hang is the supervisor's to judge, by the limit of the phase; rank 0 may download for hours.
_PATIENCE = timedelta(days=7)
_MEETING = timedelta(minutes=15)  # for every rank to start; the import of torch from a cold network disk takes minutes
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # set where a torchrun of another's making serves the store itself


@dataclass(frozen=True, slots=True)
class World:
    """The processes of one attempt. `saving` is the gloo group of what is not training: set-up and checkpoints."""

    rank: int
    size: int
    saving: dist.ProcessGroup | None = None  # None = one process

    def sum(self, values: Tensor) -> Tensor:
        """`values` summed over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Return when all processes are here. For the set-up: later, the save thread has this group to itself."""
        if self.saving is not None:
            dist.barrier(self.saving)


def local_rank() -> int:
    """This process's number on its machine; torchrun sets it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join(processes: int, device: Device) -> World:
    """Meet the other processes that torchrun started. UserError where their number is not what the run asks for."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size != processes:
        raise UserError(
            what=f"{size} training processes were started and the run asks for {processes}",
            where="parallel.processes",
            why="the global batch and the sharding are laid out for that number",
            fix=f"start with torchrun --nproc-per-node {processes}, or set parallel.processes = {size}",
            exit_code=ExitCode.RUN_FAILED,
        )
    if size == 1:
        return World(rank=0, size=1)
    rank = int(os.environ["RANK"])
    store = None if os.environ.get(_AGENT_STORE) == "True" else _store(rank, size)
    of_store: dict[str, Any] = {} if store is None else {"store": store, "rank": rank, "world_size": size}
    if device.torch.type == "cuda":
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device.torch, **of_store)
    else:
        dist.init_process_group("gloo", **of_store)
    # A group of its own: collectives of the save thread must not interleave with those of the training loop.
    return World(dist.get_rank(), size, saving=dist.new_group(backend="gloo", timeout=_PATIENCE))


def _store(rank: int, size: int) -> TCPStore:
    """Where the ranks find each other: rank 0 serves it on loopback, where torch's own would listen everywhere."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank > 0:
        return TCPStore(host, port, size, timeout=_MEETING)
    serving = socket.create_server((host, port), backlog=size)
    return TCPStore(host, port, size, is_master=True, timeout=_MEETING, master_listen_fd=serving.detach())


def leave(world: World) -> None:
    if world.size > 1:
        dist.destroy_process_group()


def spread(model: Decoder, world: World, parallel: spec.Parallel, device: Device) -> nn.Module:
    """The model as the loop calls it.

    dp_shard = 1: every process holds it whole and DDP averages gradients. dp_shard > 1: FSDP2 shards
    parameters, gradients and optimizer state block by block; replicas of the shards where
    dp_replicate > 1 (HSDP).
    """
    if world.size == 1:
        return model
    if parallel.dp_shard == 1:
        device_ids = [device.torch.index] if device.torch.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
    return _shard(model, world.size // parallel.dp_shard, parallel.dp_shard, device)


def _shard(model: Decoder, replicas: int, shards: int, device: Device) -> nn.Module:
    if replicas > 1:
        mesh = init_device_mesh(device.torch.type, (replicas, shards), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device.torch.type, (shards,), mesh_dim_names=("shard",))
    # bf16 halves what is gathered; gradients are reduced in fp32. Inputs stay as they are: the angles of
    # the rotary embedding lose whole positions in bf16.
    bf16 = device.compute == "bf16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None,
        reduce_dtype=torch.float32 if bf16 else None,
        cast_forward_inputs=False,
    )
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def sync_gradients(model: nn.Module, *, last: bool) -> None:
    """Before the forward of a micro-batch: let DDP reduce only after the last one of the step.

    FSDP2 reduces after each: holding the sum back would hold the whole unsharded gradient in memory.
    """
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = last


def bare(model: nn.Module) -> Decoder:
    """The decoder inside, for code that needs its fields. Call the wrapped one to compute."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, Decoder)
    return inner


def sharded(model: nn.Module) -> bool:
    """Whether every process must take part in every forward, evaluation and sampling included."""
    return isinstance(model, FSDPModule)
