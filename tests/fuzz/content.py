"""`python -m tests.fuzz.content FOLDER...`: a hash of what each checkpoint holds, by names and bits of its tensors.

Two ranks share the writing of a checkpoint in another way each time, so its files differ where its content does not.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_hash(folder: Path) -> str:
    """The hash of a checkpoint of the real loop. A child imports torch for it."""
    command = [sys.executable, "-m", "tests.fuzz.content", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _leaves(value: Any, name: str = "") -> Iterator[bytes]:
    import torch

    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{name}.{key}")
    elif isinstance(value, torch.Tensor):
        flat = value.contiguous().reshape(-1).view(torch.uint8)
        yield f"{name} {value.dtype} {tuple(value.shape)}".encode() + bytes(flat.tolist())
    else:
        yield f"{name} {json.dumps(value, sort_keys=True, default=str)}".encode()


def main(folders: list[str]) -> None:
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with tempfile.TemporaryDirectory() as temporary:
        for folder in folders:
            out = Path(temporary, "content.pt")
            dcp_to_torch_save(folder, out)
            found = hashlib.sha256()
            for leaf in _leaves(torch.load(out, weights_only=True)):
                found.update(leaf)
            sys.stdout.write(f"{found.hexdigest()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
