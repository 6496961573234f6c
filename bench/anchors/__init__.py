"""Training loops for comparison with ours. None of them imports prime_train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """One batch. Labels are already shifted, and -100 if there is nothing to predict. Both (B, T) int64."""

    tokens: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Anchor:
    """A loop that runs in blocks. `run` makes one optimizer step per batch and returns the seconds of each step."""

    name: str
    parameters: int
    run: Callable[[list[Tokens]], list[float]]


PEAK_LR = 1e-3
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
CLIP_NORM = 1.0
