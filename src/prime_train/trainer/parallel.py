"""Connects the training processes and distributes a model over them: plain, DDP or FSDP2. Trains nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in its __all__ (torch 2.13)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.trainer.attempt import read_ranks
from prime_train.trainer.device import Device
from prime_train.trainer.model.decoder import Decoder

# The supervisor detects hangs by the limit of each phase; rank 0 may download or evaluate for hours.
_LONG_TIMEOUT = timedelta(days=7)
_START_TIMEOUT = timedelta(minutes=15)  # importing torch from a cold network disk takes minutes
_LARGE_RING = 32  # ranks
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # set by a torchrun that serves the store itself


Value = TypeVar("Value")


class NotCommittedError(Exception):
    """A replica was lost in the step, so no weight has changed and the step is to be repeated."""


class Between(Protocol):
    """The connection of this replica to the others. Each step has one set of replicas that take part in it."""

    size: int  # replicas of the step

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the replicas, in place. After a loss the values mean nothing, and `commit` raises."""

    def commit(self) -> None:
        """Raise NotCommittedError if a sum of this step has failed. Called once in a step, by every rank."""


@dataclass(frozen=True, slots=True)
class World:
    """The processes of one attempt. Gloo groups: `saving` for set-up and checkpoints, `waiting` for `wait_long`."""

    rank: int
    size: int
    saving: dist.ProcessGroup | None = None  # None = one process
    local_rank: int = 0  # among the processes of this machine
    local_size: int = 1
    waiting: dist.ProcessGroup | None = None
    between: Between | None = None  # None without replicas

    @property
    def machine(self) -> int:
        """The number of this machine."""
        return self.rank // self.local_size

    @property
    def machines(self) -> int:
        return self.size // self.local_size

    @property
    def step_ranks(self) -> int:
        """The processes of the step, in all replicas together."""
        return self.size * (1 if self.between is None else self.between.size)

    def load_in_turn(self, load: Callable[[], Value]) -> Value | None:
        """What `load` returns on the first rank of each machine in turn; None on the others, which use its cache."""
        loaded = None
        for machine in range(self.machines):
            if machine == self.machine and self.local_rank == 0:
                loaded = load()
            self.wait()
        return loaded

    def sum(self, values: Tensor) -> Tensor:
        """`values` summed over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_step(self, values: Tensor) -> Tensor:
        """`values` summed over the processes and over the replicas of the step, in place."""
        self.sum(values)
        if self.between is not None:
            self.between.sum([values])
        return values

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over the replicas of the step, in place. The processes of one have summed theirs."""
        if self.between is None or self.between.size == 1:  # alone, the sum is there already
            return
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        for weight in weights:
            if weight.grad is None:  # each replica must sum the same tensors
                weight.grad = torch.zeros_like(weight)
        self.between.sum([read_local(weight.grad) for weight in weights if weight.grad is not None])

    def commit(self) -> None:
        """Raise NotCommittedError where the step of the replicas has failed."""
        if self.between is not None:
            self.between.commit()

    def share(self, value: Value) -> Value:
        """The value of rank 0, on every rank, pickled. It may wait as long as torch's limit of a collective."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def agree(self, value: object) -> bool:
        """Whether the value of every rank is that of rank 0. Called by every rank."""
        if self.size == 1:
            return True
        shared = self.share(value)
        different = torch.tensor([int(shared != value)])
        dist.all_reduce(different, group=self.saving)
        return int(different) == 0

    def wait(self) -> None:
        """Wait for all processes. After the set-up only the save thread may do it, because it uses this group alone."""
        if self.saving is not None:
            dist.barrier(self.saving)

    def wait_long(self) -> None:
        """Wait in the training loop for what one process does alone, longer than the limit of an exchange allows."""
        if self.waiting is not None:
            dist.barrier(self.waiting)


def join(processes: int, device: Device, limit_s: float | None = None) -> World:
    """Connect to the other processes of torchrun, `limit_s` for an exchange. UserError where their number differs."""
    ranks = read_ranks(os.environ)
    rank, size = ranks.rank, ranks.size
    if size != processes:
        what = f"{size} training processes were started and the run needs {processes}"
        fix = f"start with torchrun --nproc-per-node {processes}, or set parallel.processes = {size}"
        raise UserError(what, "parallel.processes", "the global batch and the sharding depend on that number", fix)
    if size == 1:
        return World(rank=0, size=1)
    if ranks.machines is not None:
        store: TCPStore | None = _store(rank, size, ranks.machines.addresses[0], ranks.machines.store_port)
    elif os.environ.get(_AGENT_STORE) == "True":
        store = None
    else:
        store = _store(rank, size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    arguments: dict[str, Any] = {} if store is None else {"store": store, "rank": rank, "world_size": size}
    if limit_s is not None:
        arguments["timeout"] = timedelta(seconds=limit_s)
    if device.torch.type == "cuda":
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device.torch, **arguments)
    else:
        dist.init_process_group("gloo", **arguments)
    # Separate groups: collectives of the save thread must not interleave with those of the training loop.
    saving, waiting = (dist.new_group(backend="gloo", timeout=_LONG_TIMEOUT) for _ in range(2))
    return World(dist.get_rank(), size, saving, ranks.local_rank, ranks.local_size, waiting)


def _store(rank: int, size: int, host: str, port: int) -> TCPStore:
    """The store that connects the ranks. Rank 0 serves it on one address; torch's default listens on all interfaces."""
    if rank > 0:
        return TCPStore(host, port, size, timeout=_START_TIMEOUT)
    serving = socket.create_server((host, port), backlog=size)
    return TCPStore(host, port, size, is_master=True, timeout=_START_TIMEOUT, master_listen_fd=serving.detach())


_left: list[Any] = []  # process groups, until the process ends


def leave(world: World) -> None:
    if world.size > 1:
        # The last reference must not be that of DDP's reducer. It frees the group and keeps the GIL meanwhile: it would
        # wait for a thread of gloo that waits for the GIL.
        _left.append(dist.group.WORLD)
        dist.destroy_process_group()


def spread(model: nn.Module, world: World, parallel: spec.Parallel, device: Device) -> nn.Module:
    """The wrapped model for the training loop. The weights of a model on the meta device have no values yet.

    dp_shard = 1: DDP averages gradients. Above: FSDP2 shards block by block, and dp_replicate > 1 replicates shards.
    """
    if world.size == 1:
        return model
    if parallel.dp_shard == 1:
        # The buffers are those of routers: each rank counts its own tokens.
        arguments: dict[str, Any] = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
        if device.torch.type == "cuda":
            width = model.config.hidden_size if isinstance(model, Decoder) else 0  # any other model is small
            size_mb = bucket_mb(width, world.size)
            arguments |= {"device_ids": [device.torch.index], "bucket_cap_mb": size_mb}
        return DistributedDataParallel(model, **arguments)
    return _shard(model, world.size // parallel.dp_shard, parallel, device)


def bucket_mb(hidden_size: int, ranks: int) -> float:
    """Megabytes of gradients that DDP sums at a time on GPUs: about two blocks, from torch's 25 MB on."""
    size = 25 * (1 + 12 * hidden_size**2 / 1e8) * (1.5 if ranks > _LARGE_RING else 1.0)
    return min(250.0, max(10.0, size))


def _shard(model: nn.Module, replicas: int, parallel: spec.Parallel, device: Device) -> nn.Module:
    shards = parallel.dp_shard
    if replicas > 1:
        mesh = init_device_mesh(device.torch.type, (replicas, shards), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device.torch.type, (shards,), mesh_dim_names=("shard",))
    # bf16 halves the bytes to gather; gradients are reduced in fp32. Inputs are not cast, because the rotary angles
    # would lose whole positions in bf16.
    bf16 = device.compute == "bf16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None,
        reduce_dtype=torch.float32 if bf16 else None,
        cast_forward_inputs=False,
    )
    for block in list_blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=parallel.reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def list_blocks(model: nn.Module) -> list[nn.Module]:
    """The modules in every list whose name ends with `blocks`."""
    stacks = (module for name, module in model.named_modules() if name.endswith("blocks"))
    return [block for stack in stacks for block in stack.children()]


def sync_gradients(model: nn.Module, reduce: Literal["each", "last"], *, last: bool) -> None:
    """Sum gradients only after the last micro-batch, with FSDP2 if `reduce` is "last". Call it before a forward."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = last
    elif isinstance(model, FSDPModule) and reduce == "last":
        model.set_requires_gradient_sync(last)


def unwrap(model: nn.Module) -> nn.Module:
    """The model without DDP. A sharded model is returned as it is: FSDP2 only changes its class."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def unwrap_decoder(model: nn.Module) -> Decoder:
    """`unwrap` for a model on tokens."""
    inner = unwrap(model)
    assert isinstance(inner, Decoder)
    return inner


def read_local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, without a copy and without its gradient: of a whole one all of it."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def is_sharded(model: nn.Module) -> bool:
    """Whether the model is sharded; then every process must take part in every forward, also in evaluation."""
    return isinstance(model, FSDPModule)
