"""Sizes of common models, by their name on the hub. Judges nothing."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from prime_train.registry import known

_ANY_CONTEXT = 2**31  # if the registry has no positions: no context exceeds it


class ModelSizes(NamedTuple):
    """One model. `ctx_tokens` is its max_position_embeddings, `experts` 0 where it is dense."""

    name: str
    heads: int
    kv_heads: int
    vocab_size: int
    parameters: int
    experts: int = 0
    ctx_tokens: int = _ANY_CONTEXT


@cache
def sizes_of(model_name: str | None) -> ModelSizes | None:
    """The sizes of a model; None if the registry does not have it."""
    row = None if model_name is None else known.shape_row(model_name)
    if row is None or model_name is None:
        return None
    return ModelSizes(model_name, **{name: row[name] for name in ModelSizes._fields[1:] if name in row})
