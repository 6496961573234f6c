"""Trains as torchtitan does, as far as can be seen from outside: logs, checkpoints, and nothing of prime-train.

python train.py CHECKPOINT_FOLDER MAX_STEPS INTERVAL LOAD_STEP       dies once at step DIE_AT of the environment
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from pathlib import Path


class Index:
    """As torch names a tensor in `.metadata`."""

    def __init__(self, fqn: str) -> None:
        self.fqn = fqn


class Storage:
    """As torch says where a tensor is stored."""

    def __init__(self, length: int) -> None:
        self.relative_path, self.offset, self.length = "__0_0.distcp", 0, length


class Metadata:
    """As torch pickles what a checkpoint holds."""

    def __init__(self, length: int) -> None:
        self.state_dict_metadata: dict[str, object] = {}
        self.storage_data = {Index("model"): Storage(length)}


def save(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(bytes(4096))
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(4096)))


def main() -> None:
    root, max_steps, interval, load_step = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    if load_step and not (root / f"step-{load_step}" / ".metadata").exists():
        sys.exit(f"there is no checkpoint of step {load_step}")
    died = root.parent / "died"
    for step in range(load_step + 1, max_steps + 1):
        time.sleep(0.05)
        sys.stdout.write(f"[titan] step: {step:2}  loss: {10 / step:7.4f}\n")
        sys.stdout.flush()
        if step % interval == 0:
            save(root / f"step-{step}")
        if step == int(os.environ.get("DIE_AT", "0")) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write("[titan] Training completed\n")


if __name__ == "__main__":
    main()
