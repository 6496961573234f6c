"""Sizes of models that people train, by their name on the Hugging Face hub. Reads one shipped file, judges nothing.

`prime_train.registry` reads the rest of the registry, with pathlib and dataclasses, which a lint cannot afford.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import tomli

from prime_train.dialects.prime_rl.shipped import shipped


class ModelSizes(NamedTuple):
    """One model. `ctx_tokens` is its max_position_embeddings, `experts` 0 where it is dense."""

    name: str
    heads: int
    kv_heads: int
    vocab_size: int
    parameters: int
    experts: int
    ctx_tokens: int
    source: str
    as_of: str


def sizes_of(model_name: str | None) -> ModelSizes | None:
    """The sizes of a model; None where the registry does not have it."""
    return None if model_name is None else _by_name().get(model_name)


@cache
def _by_name() -> dict[str, ModelSizes]:
    with open(shipped("models.toml"), "rb") as file:
        return {entry["name"]: ModelSizes(**entry) for entry in tomli.load(file)["model"]}
