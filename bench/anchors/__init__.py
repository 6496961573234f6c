"""Training loops for comparison with ours. None of them imports prime_train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The model that every loop trains."""

    layers: int
    hidden_size: int
    heads: int
    mlp_size: int
    ctx_tokens: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


@dataclass(frozen=True, slots=True)
class Tokens:
    """One batch. Labels are already shifted. Both (B, T) int64."""

    tokens: Tensor
    labels: Tensor


class Crops:
    """Batches as nanoGPT loads them: crops of a memory-mapped file of tokens, at random places."""

    def __init__(self, path: str, batch: int, ctx_tokens: int) -> None:
        self.path, self.batch, self.ctx_tokens = path, batch, ctx_tokens
        self._generator = torch.Generator().manual_seed(0)

    def next(self) -> Tokens:
        stored = np.memmap(self.path, dtype=np.uint16, mode="r")  # opened for each batch, as nanoGPT does
        places = torch.randint(len(stored) - self.ctx_tokens, (self.batch,), generator=self._generator).tolist()
        crops = np.stack([stored[place : place + self.ctx_tokens + 1] for place in places]).astype(np.int64)
        both = torch.from_numpy(crops)
        return Tokens(both[:, :-1].contiguous(), both[:, 1:].contiguous())


@dataclass(frozen=True, slots=True)
class Anchor:
    """A loop that runs in blocks. `run` loads a batch and makes an optimizer step as often as it is told to, and
    returns the CPU-seconds of each."""

    name: str
    parameters: int
    run: Callable[[int], list[float]]


PEAK_LR = 1e-3
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
CLIP_NORM = 1.0
