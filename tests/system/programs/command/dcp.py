"""A script of two ranks that saves with torch.distributed.checkpoint and resumes from a path that it is given.

torchrun ... dcp.py STEPS EVERY [--resume PATH]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main() -> None:
    steps, every = int(sys.argv[1]), int(sys.argv[2])
    path = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else ""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = {"step": torch.tensor([0]), "weight": torch.zeros(1000)}
    if path:
        dcp.load(state, checkpoint_id=path)  # type: ignore[attr-defined]
    Path(f"rank{rank}.pid").write_text(str(os.getpid()), encoding="utf-8")
    for step in range(int(state["step"].item()) + 1, steps + 1):
        time.sleep(0.1)
        state["step"] += 1
        state["weight"] += step
        if rank == 0:
            print(f"step {step} loss {1 / step:.4f}")  # noqa: T201
        if step % every == 0:
            dcp.save(state, checkpoint_id=f"out/step_{step}")  # type: ignore[attr-defined]
    if rank == 0:
        print(f"sum {state['weight'][0].item():.0f}")  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
