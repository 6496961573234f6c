"""Runs a function on two gloo processes that shard a decoder with FSDP2, and collects what each returns."""

import gc
import importlib
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from prime_train.trainer.model import Decoder
from tests.fork_server import interpreter
from tests.trainer.tiny import DEADLINE_S

_REPOSITORY = Path(__file__).parents[2]


def shard(model: Decoder) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def run_on_two_ranks(work: Callable[[int], Any], out: Path) -> list[Any]:
    """What `work(rank)` returned on rank 0 and on rank 1. `work` is a module's function, which each rank imports."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [interpreter(), "-m", __name__, work.__module__, work.__name__, str(port), str(out)]
    ranks = [subprocess.Popen([*words, str(rank)], cwd=_REPOSITORY) for rank in range(2)]
    try:
        assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


def _main(module: str, name: str, port: str, out: str, rank: str) -> None:
    work = getattr(importlib.import_module(module), name)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
    torch.save(work(int(rank)), Path(out) / f"{rank}.pt")
    # A sharded model is a reference cycle. One that lives on into the end of the interpreter has gloo's
    # threads release Python objects there, which aborts the process now and then (torch 2.13).
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
