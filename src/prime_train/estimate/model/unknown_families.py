"""Decides whether an unknown model type may be counted as a Llama. Pure; counts nothing.

A wrong number without a warning is worse than none: what could make the blocks different is refused by its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prime_train.estimate.model.blocks import Numbers, UnknownBlocksError

_ATTENTION_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
# Parts in the keys by which transformers 5 configures blocks other than attention with an MLP or experts.
_STRUCTURE = re.compile(
    "hybrid|pattern|block_type|mamba|ssm|state_size|conv|rnn|lru|recurrent|retention|lightning|linear_|kda|delta|"
    "attn_layer|attention_layer|attn_type|per_layer|altup|laurel|kv_shared|latent|zero_expert|engram|hyper_con|"
    "compress|index_n|index_head|expert_layer|moe_layer_freq|cross_attention|encoder|adapter|cycles"
)
_PLAIN = re.compile("sliding_window_pattern|linear_bias|chunk_size_feed_forward")
_SIZE = re.compile(r"(^|_)(num|n|size|dim|rank|layers|heads|experts|freq|period|interval|channels)(_|$)")
# Sizes that are read, and sizes that change no weight: generation, groups, images.
_READ = re.compile(
    "hidden_size|^d_model$|^n_embd$|heads?$|kv_heads$|head_dim|layers?$|^n_inner$|intermediate_size|"
    "ffn_hidden_size|vocab_size|^(num_|n_)(local_|routed_|shared_)?experts|^moe_num_experts$|_positions?|window|_id$|_group$|groups$|beam|labels|"
    "ngram|return_sequences|logits|image|patch|num_nextn|rope|rotary|bits|pretraining"
)
_GATED = {"silu", "swish", None}  # as a Llama's; what others gate is not known
_MOST_OFF = 0.02  # a count as a Llama may differ from the stored parameters by this share


def check_structure(numbers: Numbers, model_type: str, *, is_known: bool) -> None:
    """Raises UnknownBlocksError for a layer that is not counted here, and for an unknown type with other blocks."""
    kinds = _ATTENTION_KINDS | ({"linear_attention", "indexed_attention"} if is_known else set())
    unknown = next((kind for kind in numbers.strings("layer_types") if kind not in kinds), None)
    if unknown is not None:
        raise UnknownBlocksError("layer_types", f"has {unknown!r}, and how such a layer is built is not known")
    for key, _ in () if is_known else numbers.set_values():
        if _STRUCTURE.search(key) and not _PLAIN.search(key):
            raise UnknownBlocksError(key, f"is set, and {_unnamed(model_type)}: its blocks are not those of a Llama")


def check_like_llama(numbers: Numbers, model_type: str, counted: int, loaded: int | None) -> None:
    """Raises UnknownBlocksError if an unknown model type, counted as a Llama, may have other blocks.

    `loaded`: parameters of the weights. Where they agree with the count, unknown sizes and activations do not matter.
    """
    if loaded is not None:
        if abs(counted / loaded - 1) > _MOST_OFF:
            what = f"{counted / 1e9:.3g} B parameters if read as a Llama, and its weights have {loaded / 1e9:.3g} B"
            raise UnknownBlocksError("", f"{what}: {_unnamed(model_type)}")
        return
    if (doubt := next(_doubts(numbers), None)) is not None:
        key, value = doubt
        raise UnknownBlocksError(
            key, f"is {value!r}, and {_unnamed(model_type)}: whether its blocks are a Llama's is unclear"
        )


def _unnamed(model_type: str) -> str:
    return f"model type {model_type!r} is not known" if model_type else "no model type is named"


def _doubts(numbers: Numbers) -> Iterator[tuple[str, Any]]:
    """Keys whose meaning for the blocks is not known, with their values."""
    for key in ("hidden_act", "hidden_activation", "activation_function"):
        if numbers.raw(key) not in _GATED:
            yield key, numbers.raw(key)
    for key, value in numbers.set_values():
        is_size = isinstance(value, int) and not isinstance(value, bool) and value > 1
        if is_size and _SIZE.search(key) and not _READ.search(key):
            yield key, value
