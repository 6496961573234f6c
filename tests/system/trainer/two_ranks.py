"""Runs a function on two gloo processes that shard a decoder with FSDP2, and collects what each returns."""

import gc
import pickle
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

from prime_train.trainer.model.decoder import Decoder
from tests.fork_server import interpreter
from tests.unit.trainer.tiny import DEADLINE_S

_REPOSITORY = Path(__file__).parents[3]


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
    (out / "work.pickle").write_bytes(pickle.dumps(work))
    words = [interpreter(), "-m", __name__, str(out), str(port), str(count)]
    ranks = [subprocess.Popen([*words, str(rank)], cwd=_REPOSITORY) for rank in range(count)]
    try:
        assert [rank.wait(DEADLINE_S) for rank in ranks] == [0] * count
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [torch.load(out / f"{rank}.pt") for rank in range(count)]


def _main(out: str, port: str, count: str, rank: str) -> None:
    work = pickle.loads(Path(out, "work.pickle").read_bytes())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(count))
    dist.barrier()  # a rank whose work ends at once would close its connections while another one still makes its own
    torch.save(work(int(rank)), Path(out) / f"{rank}.pt")
    # A sharded model is a reference cycle. One that lives on into the end of the interpreter has gloo's
    # threads release Python objects there, which aborts the process now and then (torch 2.13).
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
