"""Learns digits of 8 x 8 pixels that it draws itself, on two processes, and takes its settings while it trains.

torchrun --nproc-per-node 2 digits.py STEPS PAUSE_S     each rank writes its steps to digits-rankN.jsonl
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prime_train import live

# Each digit as five rows of three pixels.
DIGITS = (
    *("111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001"),
    *("111100111001111", "111100111101111", "111001010010010", "111101111101111", "111101111001111"),
)
SHAPES = torch.tensor([[float(pixel) for pixel in digit] for digit in DIGITS]).view(10, 5, 3)


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits at random places with noise, (count, 64), and their labels, (count,)."""
    labels = torch.randint(10, (count,), generator=generator)
    images = 0.5 * torch.randn(count, 8, 8, generator=generator)
    rows, columns = (torch.randint(room, (count,), generator=generator).tolist() for room in (4, 6))
    for image, label, row, column in zip(images, labels.tolist(), rows, columns, strict=True):
        image[row : row + 5, column : column + 3] += SHAPES[label]
    return images.view(count, 64), labels


def main() -> None:
    steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    live.total(steps)
    with Path(f"digits-rank{rank}.jsonl").open("w", encoding="utf-8") as file:
        for step in range(steps):
            settings = live.settings(step)  # the same on both ranks
            lr, batch_size = settings.get("lr", 0.1), settings.get("batch_size", 32)
            optimizer.param_groups[0]["lr"] = lr
            images, labels = draw(batch_size // ranks, generator)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            live.step(step + 1, loss=loss, tokens=batch_size)
            file.write(json.dumps({"step": step + 1, "loss": loss.item(), "lr": lr, "images": len(labels)}) + "\n")
            file.flush()
            if live.should_stop():
                break
            time.sleep(pause_s)
        else:
            live.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
