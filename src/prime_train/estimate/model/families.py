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


class DecoderFamily(NamedTuple):
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
    dense_key: str = "intermediate_size"  # names the dense MLP size
    always_shared: bool = False  # each block with experts has an equally large shared one, without a key for it
    defaults: Mapping[str, Any] = _NONE


LLAMA = DecoderFamily()
UNKNOWN = DecoderFamily(expert_key="")  # read as a Llama
_QWEN3 = DecoderFamily(query_norm="head", defaults={"head_dim": 128})
_QWEN3_MOE = DecoderFamily(has_experts=True, query_norm="head")
_MOE = DecoderFamily(has_experts=True, expert_key="intermediate_size")
_QKV_BIAS = DecoderFamily(attention_bias="qkv", bias_key="")  # Qwen2 has no key for them
_GLM = DecoderFamily(attention_bias="qkv", biased="qkv")
_ALL_BIASES = DecoderFamily(attention_bias="all", mlp_bias=True, gated=False, norm_bias=True)
_GEMMA3 = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
           "sliding_window": 4096, "max_position_embeddings": 131072}  # fmt: skip
_GEMMA3N = {"vocab_size": 262400, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
            "laurel_rank": 64, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
            "altup_num_inputs": 4, "num_kv_shared_layers": 15, "intermediate_size": 16384}  # fmt: skip
_GEMMA4 = {"vocab_size": 262144, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
           "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256}  # fmt: skip

FAMILIES: Mapping[str, DecoderFamily] = {
    **dict.fromkeys(("llama", "yi", "baichuan", "internlm2", "granite"), LLAMA),
    "smollm3": LLAMA._replace(tied=True),
    "mistral": DecoderFamily(sliding_default=True),
    "mixtral": _MOE._replace(sliding_default=True),
    "qwen": _QKV_BIAS._replace(halved_mlp=True),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QKV_BIAS),
    "qwen2_moe": DecoderFamily(has_experts=True, attention_bias="qkv", bias_key="qkv_bias", shared_gate=True),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), _QWEN3),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe_text"), _QWEN3_MOE),
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _QWEN3_MOE._replace(gated_attention=True, shared_gate=True)),
    "qwen3_5_text": DecoderFamily(query_norm="head", gated_attention=True),
    "gemma": DecoderFamily(tied=True),
    "gemma2": DecoderFamily(norms=4, tied=True, sliding_pattern=2),
    "gemma3_text": DecoderFamily(norms=4, query_norm="head", tied=True, sliding_pattern=6, defaults=_GEMMA3),
    "phi": _ALL_BIASES._replace(norms=1, head_bias=True),
    "phi3": DecoderFamily(sliding_default=True),
    "olmo": DecoderFamily(norms=0),
    "nanochat": DecoderFamily(norms=0, gated=False),  # its norms of queries and keys have no parameters either
    "olmo2": DecoderFamily(query_norm="wide"),
    "olmo3": DecoderFamily(query_norm="wide", sliding_pattern=4),
    "olmoe": _MOE._replace(query_norm="wide"),
    "glm": _GLM,
    "glm4": _GLM._replace(norms=4),
    "glm4_moe": DecoderFamily(
        has_experts=True, biased="qkv", query_norm="head", query_norm_key="use_qk_norm", router_correction=True
    ),
    "chatglm": _GLM._replace(bias_key="add_qkv_bias"),
    "deepseek_v2": DecoderFamily(has_experts=True),
    **dict.fromkeys(
        ("deepseek_v3", "kimi_k2", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa"),
        DecoderFamily(has_experts=True, router_correction=True),
    ),
    "gpt_oss": _MOE._replace(
        attention_bias="all", mlp_bias=True, router_bias=True, attention_sinks=True, sliding_pattern=2
    ),
    "kimi_linear": DecoderFamily(has_experts=True, router_correction=True),
    "llama4_text": _MOE._replace(dense_key="intermediate_size_mlp", always_shared=True, sliding_pattern=4),
    "minimax_m2": _MOE._replace(query_norm="wide", router_correction=True),
    "granitemoe": _MOE,
    "arcee": DecoderFamily(gated=False),
    "apertus": DecoderFamily(gated=False, query_norm="head"),
    "seed_oss": _GLM,
    "exaone4": DecoderFamily(query_norm="head", sliding_pattern=4),
    "cohere": DecoderFamily(norms=1, tied=True),
    "cohere2": DecoderFamily(norms=1, tied=True, sliding_pattern=4),
    "stablelm": DecoderFamily(bias_key="use_qkv_bias", biased="qkv", norm_bias=True),
    "starcoder2": _ALL_BIASES._replace(bias_key="use_bias", tied=True),
    "falcon": DecoderFamily(bias_key="bias", gated=False, norm_bias=True, tied=True),
    "gpt_neox": _ALL_BIASES,
    "gpt2": _ALL_BIASES._replace(bias_key="", tied=True, learned_positions=True),
    "mpt": _ALL_BIASES._replace(bias_key="", tied=True),
    # Counted block by block in mixed_decoders.py.
    "nemotron_h": DecoderFamily(gated=False),
    "gemma3n_text": DecoderFamily(tied=True, query_norm="head", defaults=_GEMMA3N),
    "gemma4_text": DecoderFamily(tied=True, query_norm="head", defaults=_GEMMA4),
}
