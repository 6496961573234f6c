"""Reads the shipped tensor names that a decoder needs, by model type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from prime_train.registry.gpus import read_table


@dataclass(frozen=True, slots=True)
class TensorNames:
    """A decoder's modules. `block` is below `root` and the block's number, `beside` below `root` alone."""

    types: tuple[str, ...]
    block: tuple[str, ...]
    root: str = "model."
    blocks: str = "layers"
    beside: tuple[str, ...] = ("norm",)
    embedding: str = "embed_tokens"
    head: str = "lm_head"
    prefix_optional: bool = False

    def modules(self) -> tuple[str, ...]:
        """The full names, with `*` for a block's number. Embedding and head may be one tensor and are left out."""
        in_blocks = (f"{self.root}{self.blocks}.*.{module}" for module in self.block)
        return (*in_blocks, *(f"{self.root}{module}" for module in self.beside))


@cache
def tensor_names(model_type: str) -> TensorNames | None:
    """The names that this model type needs; None if they are not known."""
    for entry in read_table("tensor_names.toml")["names"]:
        if model_type in entry["types"]:
            plain = ((key, tuple(value) if isinstance(value, list) else value) for key, value in entry.items())
            return TensorNames(**dict(plain))
    return None
