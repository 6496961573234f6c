"""Lists how model families differ from Llama: biases, norms, experts, tied heads. Values only; counts nothing.

Source: each family's modelling code in transformers 5 (github.com/huggingface/transformers,
src/transformers/models/<family>), or the model's own repository for remote code. A test builds one model of each
family and compares the parameter counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

_NONE: Mapping[str, Any] = MappingProxyType({})


class Family(NamedTuple):
    """How a family differs from Llama, whose decoder is the default of every field.

    `norms`: norms of residual-stream width per block. `query_norm`: over one "head", or "wide" over all heads.
    `bias_key`: the config key for attention biases; `attention_bias` applies if it is not set. `defaults`: values that
    published configs omit.
    """

    attention_bias: Literal["", "qkv", "all"] = ""
    bias_key: str = "attention_bias"
    biased: Literal["qkv", "all"] = "all"  # biases that `bias_key` switches on
    mlp_bias: bool = False
    gated: bool = True
    norms: int = 2
    norm_bias: bool = False
    query_norm: Literal["", "head", "wide"] = ""
    query_norm_key: str = ""  # the config key that switches it on, if any
    tied: bool = False
    head_bias: bool = False
    router_bias: bool = False
    router_correction: bool = False  # a bias per expert balances the load (DeepSeek-V3, arXiv 2412.19437, s. 2.1.2)
    shared_gate: bool = False
    attention_sinks: bool = False
    gated_attention: bool = False  # the query projection also computes a gate of the same size
    halved_mlp: bool = False  # intermediate_size counts both halves of the gated MLP
    sliding_default: bool = False  # sliding_window alone makes every layer slide
    sliding_pattern: int = 0  # every n-th layer is global, unless the config lists layer types
    learned_positions: bool = False
    has_experts: bool = False
    expert_key: str = "moe_intermediate_size"  # "": moe_intermediate_size or intermediate_size
    defaults: Mapping[str, Any] = _NONE


LLAMA = Family()
UNKNOWN = Family(expert_key="")  # read as a Llama

FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA,
    "mistral": Family(sliding_default=True),
    "mixtral": Family(has_experts=True, expert_key="intermediate_size", sliding_default=True),
    "yi": LLAMA,
    "baichuan": LLAMA,
    "internlm2": LLAMA,
    "granite": LLAMA,
    "smollm3": LLAMA._replace(tied=True),
    "qwen": Family(attention_bias="qkv", halved_mlp=True),
    "qwen2": Family(attention_bias="qkv"),
    "qwen2_vl_text": Family(attention_bias="qkv"),
    "qwen2_5_vl_text": Family(attention_bias="qkv"),
    "qwen2_vl": Family(attention_bias="qkv"),
    "qwen2_5_vl": Family(attention_bias="qkv"),
    "qwen2_moe": Family(has_experts=True, attention_bias="qkv", shared_gate=True),
    "qwen3": Family(query_norm="head", defaults={"head_dim": 128}),
    "qwen3_vl_text": Family(query_norm="head", defaults={"head_dim": 128}),
    "qwen3_moe": Family(has_experts=True, query_norm="head"),
    "qwen3_vl_moe_text": Family(has_experts=True, query_norm="head"),
    "qwen3_next": Family(has_experts=True, query_norm="head", gated_attention=True, shared_gate=True),
    "qwen3_5_text": Family(query_norm="head", gated_attention=True),
    "qwen3_5_moe_text": Family(has_experts=True, query_norm="head", gated_attention=True, shared_gate=True),
    "gemma": Family(tied=True),
    "gemma2": Family(norms=4, tied=True, sliding_pattern=2),
    "gemma3_text": Family(
        norms=4,
        query_norm="head",
        tied=True,
        sliding_pattern=6,
        defaults={
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
    ),
    "phi": Family(attention_bias="all", mlp_bias=True, gated=False, norms=1, norm_bias=True, head_bias=True),
    "phi3": Family(sliding_default=True),
    "olmo": Family(norms=0),
    "olmo2": Family(query_norm="wide"),
    "olmo3": Family(query_norm="wide", sliding_pattern=4),
    "olmoe": Family(has_experts=True, expert_key="intermediate_size", query_norm="wide"),
    "glm": Family(attention_bias="qkv", biased="qkv"),
    "glm4": Family(attention_bias="qkv", biased="qkv", norms=4),
    "glm4_moe": Family(
        has_experts=True, biased="qkv", query_norm="head", query_norm_key="use_qk_norm", router_correction=True
    ),
    "chatglm": Family(attention_bias="qkv", bias_key="add_qkv_bias", biased="qkv"),
    "deepseek_v2": Family(has_experts=True),
    "deepseek_v3": Family(has_experts=True, router_correction=True),
    "kimi_k2": Family(has_experts=True, router_correction=True),
    "gpt_oss": Family(
        has_experts=True,
        expert_key="intermediate_size",
        attention_bias="all",
        mlp_bias=True,
        router_bias=True,
        attention_sinks=True,
        sliding_pattern=2,
    ),
    "minimax_m2": Family(has_experts=True, expert_key="intermediate_size", query_norm="wide", router_correction=True),
    "granitemoe": Family(has_experts=True, expert_key="intermediate_size"),
    "arcee": Family(gated=False),
    "apertus": Family(gated=False, query_norm="head"),
    "seed_oss": Family(attention_bias="qkv", biased="qkv"),
    "exaone4": Family(query_norm="head", sliding_pattern=4),
    "cohere": Family(norms=1, tied=True),
    "cohere2": Family(norms=1, tied=True, sliding_pattern=4),
    "stablelm": Family(bias_key="use_qkv_bias", biased="qkv", norm_bias=True),
    "starcoder2": Family(
        attention_bias="all", bias_key="use_bias", mlp_bias=True, gated=False, norm_bias=True, tied=True
    ),
    "falcon": Family(bias_key="bias", gated=False, norm_bias=True, tied=True),
    "gpt_neox": Family(attention_bias="all", mlp_bias=True, gated=False, norm_bias=True),
    "gpt2": Family(
        attention_bias="all",
        bias_key="",
        mlp_bias=True,
        gated=False,
        norm_bias=True,
        tied=True,
        learned_positions=True,
    ),
    "mpt": Family(attention_bias="all", bias_key="", mlp_bias=True, gated=False, norm_bias=True, tied=True),
}
