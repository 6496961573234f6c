"""The sizes of a model that a command line describes itself, as Megatron-LM's does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.config.foreign.recipe.fields import value_in
from prime_train.config.foreign.values import ForeignPart

_GPT2_ROWS = 50257


def sizes_of(part: ForeignPart, table: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A config.json with the sizes that a command line gives; None if one of them is not known."""
    values = part.values
    found = {name: value_in(values, key) for name, key in table["sizes"].items()}
    if found["vocab_size"] is None and values.get("tokenizer_type") == "GPT2BPETokenizer":
        found["vocab_size"] = _GPT2_ROWS
    found = {name: _whole(value) for name, value in found.items() if value is not None}
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    if any(not found.get(name) for name in needed) or any(value is None for value in found.values()):
        return None
    found.setdefault("intermediate_size", 4 * (found["hidden_size"] or 0))
    found.setdefault("num_key_value_heads", found["num_attention_heads"])
    return {
        **found,
        "model_type": "mixtral"
        if found.get("num_local_experts")
        else "llama"
        if _is_true(values.get("swiglu"))
        else "arcee",
        "tie_word_embeddings": not _is_true(values.get("untie_embeddings_and_output_weights")),
    }


def _whole(value: Any) -> int | None:
    return int(value) if str(value).isdigit() and int(value) < 10**9 else None


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"
