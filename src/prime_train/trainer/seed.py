"""Seeds every random generator of a process, and saves and restores their states. Draws nothing."""

from __future__ import annotations

import json
import random
from hashlib import sha256

import numpy as np
import torch


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed Python, NumPy and torch on all devices. Each rank gets its own stream of the same seed."""
    mixed = mix(seed, "rank", rank)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)  # NumPy takes 32 bits
    torch.manual_seed(mixed)


def mix(*parts: int | str) -> int:
    """63 bits from a seed and its purpose. Adding numbers to seeds instead would make neighbouring seeds collide."""
    digest = sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def rng_state() -> dict[str, str]:
    """The state of every global generator of this process, as text by name that JSON and DCP can store."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)  # because of legacy=False; the stub does not have this
    numpy_inner = {key: np.asarray(value).tolist() for key, value in numpy_state["state"].items()}
    state = {
        "python": json.dumps(random.getstate()),
        "numpy": json.dumps(numpy_state | {"state": numpy_inner}),
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def set_rng_state(state: dict[str, str]) -> None:
    """Restore the states that `rng_state` returned."""
    version, internal, gauss = json.loads(state["python"])
    random.setstate((version, tuple(internal), gauss))
    numpy_state = json.loads(state["numpy"])
    numpy_state["state"]["key"] = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy_state)
    torch.set_rng_state(_bytes(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
