"""A trainer of somebody else: a few lines of DDP on the CPU, which know nothing of prime-train.

torchrun ... ddp.py STEPS PAUSE_S SAVE_S     after SIGTERM each rank saves for SAVE_S seconds, and ends with 0
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

asked: list[int] = []


def main() -> None:
    steps, pause_s, save_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    Path(f"rank{rank}.pid").write_text(str(os.getpid()), encoding="utf-8")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, steps + 1):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}")  # noqa: T201
        time.sleep(pause_s)
        flag = torch.tensor([len(asked)])
        dist.all_reduce(flag)
        if flag.item():
            time.sleep(save_s)
            Path(f"saved{rank}").touch()
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
