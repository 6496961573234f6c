"""Runs a function on two gloo processes that shard a decoder with FSDP2, and collects what each returns."""

import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn

from prime_train.trainer.model import Decoder


def shard(model: Decoder) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def run_on_two_ranks(work: Callable[[int], Any], out: Path) -> list[Any]:
    """What `work(rank)` returned on rank 0 and on rank 1."""
    return run_on_ranks(2, work, out)


def run_on_ranks(count: int, work: Callable[[int], Any], out: Path) -> list[Any]:
    """What `work(rank)` returned on each rank. `work` is a module's function: it is pickled."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_run, args=(work, port, out, count), nprocs=count)  # type: ignore[no-untyped-call]
    return [torch.load(out / f"{rank}.pt") for rank in range(count)]


def _run(rank: int, work: Callable[[int], Any], port: int, out: Path, count: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    torch.save(work(rank), out / f"{rank}.pt")
    # A sharded model is a reference cycle. One that lives on into the end of the interpreter has gloo's
    # threads release Python objects there, which aborts the process now and then (torch 2.13).
    gc.collect()
    dist.destroy_process_group()
