"""A trainer that saves every 5 steps as Hugging Face's Trainer does, and takes a step only when it may.

saver.py STEPS SIZE_BYTES [CHECKPOINT]: `may` holds the last step that it may take; a save waits at its half while there
is a file `hold`. It writes nothing else than out/ and its lines.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from pathlib import Path

import torch

EVERY, OUT = 5, Path("out")


def save(step: int, size_bytes: int) -> None:
    folder = OUT / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    header = json.dumps({"a": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(size_bytes // 2))
        file.flush()
        while Path("hold").exists():
            time.sleep(0.02)
        file.write(bytes(size_bytes - size_bytes // 2))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"a": torch.zeros(3)}, folder / name)
    state = {"global_step": step, "best_model_checkpoint": str(OUT / f"checkpoint-{EVERY}")}
    (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")


def main() -> None:
    steps, size_bytes = int(sys.argv[1]), int(sys.argv[2])
    first = int(sys.argv[3].rpartition("-")[2]) if len(sys.argv) > 3 else 0
    for step in range(first + 1, steps + 1):
        while int(Path("may").read_text(encoding="utf-8")) < step:
            time.sleep(0.02)
        print(f"step {step} loss {1 / step:.3f}", flush=True)  # noqa: T201
        if step % EVERY == 0:
            save(step, size_bytes)


if __name__ == "__main__":
    main()
