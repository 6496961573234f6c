"""Tests GPUs: `gpu_test.py UUID...`, or `cpu` for the stand-in. Prints one JSON line for each. Imports torch.

A product of whole numbers that fp32 holds exactly, copies between host and device, and an all-reduce between two of
the devices, each compared with the known result. CUDA_VISIBLE_DEVICES has the same UUIDs in the same order.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

CPU = "cpu"
_SIZE, _ROUNDS = 1024, 20
_COPY_BYTES = 64 * 2**20
_REDUCED = 2**20  # numbers
_MOST = 7  # products of such numbers summed 1,024 times stay below 2^24, up to which fp32 holds every whole number


def main(names: list[str]) -> None:
    """Print one line for each device, in the order of `names`: {"gpu", "problem", "what", "s"}."""
    devices = [torch.device("cpu") if name == CPU else torch.device("cuda", at) for at, name in enumerate(names)]
    for number, (name, device) in enumerate(zip(names, devices, strict=True)):
        began_s = time.monotonic()
        # Two devices are a pair, and the stand-in is one with itself; a single GPU has no partner.
        pair = (device, device) if name == CPU else (device, devices[number - 1])
        tests: list[Callable[[], str]] = [partial(multiply, device), partial(copy, device)]
        if name == CPU or len(names) > 1:
            tests.append(partial(reduce, *pair))
        problem, said = "", []
        for test in tests:
            try:
                said.append(test())
            except Exception as error:  # of any kind: a broken GPU fails anywhere in the driver
                problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"[:500]
                break
        if len(names) == 1 and name != CPU:
            said.append("no pair: one GPU is tested")
        line = {"gpu": name, "problem": problem, "what": ", ".join(said), "s": round(time.monotonic() - began_s, 3)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def multiply(device: torch.device) -> str:
    """The product of two matrices, (_SIZE, _SIZE), the same in each round as that of whole numbers on the CPU."""
    drawn = torch.Generator().manual_seed(7)
    left, right = (torch.randint(-_MOST, _MOST + 1, (_SIZE, _SIZE), generator=drawn) for _ in range(2))
    expected = (left.double() @ right.double()).float().to(device)
    left, right = left.float().to(device), right.float().to(device)
    for number in range(_ROUNDS):
        wrong = int((left @ right != expected).sum())
        if wrong:
            raise ArithmeticError(f"{wrong:,} of {_SIZE**2:,} numbers of product {number + 1} are wrong")
    return f"{_ROUNDS} products of {_SIZE} x {_SIZE} right"


def copy(device: torch.device) -> str:
    """Bytes to the device and back are the same bytes."""
    sent = torch.randint(0, 256, (_COPY_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(11))
    began_s = time.monotonic()
    back = sent.to(device, copy=True).to("cpu", copy=True)
    took_s = max(time.monotonic() - began_s, 1e-9)
    if wrong := int((back != sent).sum()):
        raise ArithmeticError(f"{wrong:,} of {_COPY_BYTES:,} bytes came back wrong")
    return f"copied at {2 * _COPY_BYTES / took_s / 2**30:.1f} GiB/s"


def reduce(first: torch.device, second: torch.device) -> str:
    """The sum of two devices, in a process each."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        spawn(_reduce_one, (store, (str(first), str(second))), nprocs=2)  # type: ignore[no-untyped-call]
    return "all-reduce of a pair right"


def _reduce_one(rank: int, store: str, names: tuple[str, str]) -> None:
    device = torch.device(names[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl", store, rank=rank, world_size=2)
    numbers = torch.arange(_REDUCED, device=device, dtype=torch.float32) * (rank + 1)
    dist.all_reduce(numbers)
    wrong = int((numbers != torch.arange(_REDUCED, device=device, dtype=torch.float32) * 3).sum())
    dist.destroy_process_group()
    if wrong:
        raise ArithmeticError(f"{wrong:,} of {_REDUCED:,} sums are wrong")


if __name__ == "__main__":
    main(sys.argv[1:])
