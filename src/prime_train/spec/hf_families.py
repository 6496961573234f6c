"""How config.json names the sizes of each model family, and what its decoder has that the file cannot change.

A family is a row of a table. Reads values with their bounds, opens no file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from prime_train.core.errors import UserError

_CORRECT = "correct config.json, or download the folder again"
NEEDED = object()


def config_error(what: str, where: str, why: str, fix: str = _CORRECT) -> UserError:
    """The error of a config.json that cannot be used."""
    return UserError(what=what, where=where, why=why, fix=fix)


def show(value: object) -> str:
    return "null" if value is NEEDED else json.dumps(value, default=str)[:100]


class Raw(NamedTuple):
    """A config.json and the place that an error names."""

    values: Mapping[str, Any]
    where: str


Read = Callable[[Raw, str, Any], object]  # of a key, with its default: the value, or UserError


def read_integer(raw: Raw, key: str, default: Any, least: int = 1) -> int:
    value = raw.values.get(key)
    value = default if value is None else value
    if type(value) is not int or value < least:
        what = f"{key} = {show(value)}" if key in raw.values else f"{key} is missing"
        why = f"the architecture needs a {'positive ' if least else ''}whole number"
        raise config_error(what, raw.where, why, "download the folder again")
    return value


def read_count(raw: Raw, key: str, default: Any) -> int:
    return read_integer(raw, key, default, least=0)


def read_window(raw: Raw, key: str, default: Any) -> int | None:
    value = raw.values.get(key, default)
    return None if value is None else read_integer(raw, key, default)


def read_positive(raw: Raw, key: str, default: Any) -> float:
    value = raw.values.get(key, default)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise config_error(f"{key} = {show(value)}", raw.where, "it must be a positive number")
    return float(value)


def read_flag(raw: Raw, key: str, default: Any) -> bool:
    value = raw.values.get(key, default)
    if type(value) is not bool:
        raise config_error(f"{key} = {show(value)}", raw.where, "it must be true or false")
    return value


class ConfigEntry(NamedTuple):
    """A field of the Architecture and its key; "" for a field that is always the default.

    A key that is omitted has the default of transformers 5, which may depend on the fields before it.
    """

    field: str
    key: str
    default: Any = NEEDED  # a value, or a function of the fields that are read
    read: Read = read_integer


def _per_head(fields: Mapping[str, Any]) -> int:
    return int(fields["hidden_size"] // fields["heads"])


_ROTARY = (
    ConfigEntry("vocab_size", "vocab_size"),
    ConfigEntry("layers", "num_hidden_layers"),
    ConfigEntry("hidden_size", "hidden_size"),
    ConfigEntry("heads", "num_attention_heads"),
    ConfigEntry("kv_heads", "num_key_value_heads", lambda fields: fields["heads"]),
    ConfigEntry("head_dim", "head_dim", _per_head),
    ConfigEntry("mlp_size", "intermediate_size"),
    ConfigEntry("norm_eps", "rms_norm_eps", 1e-6, read_positive),
    ConfigEntry("tie_embeddings", "tie_word_embeddings", default=False, read=read_flag),
)
_GPT2 = (
    ConfigEntry("vocab_size", "vocab_size"),
    ConfigEntry("layers", "n_layer"),
    ConfigEntry("hidden_size", "n_embd"),
    ConfigEntry("heads", "n_head"),
    ConfigEntry("kv_heads", "", lambda fields: fields["heads"]),
    ConfigEntry("head_dim", "", _per_head),
    ConfigEntry("mlp_size", "n_inner", lambda fields: 4 * fields["hidden_size"]),
    ConfigEntry("learned_positions", "n_positions"),
    ConfigEntry("norm_eps", "layer_norm_epsilon", 1e-5, read_positive),
    ConfigEntry("tie_embeddings", "tie_word_embeddings", default=True, read=read_flag),
)
_EXPERTS = (
    ConfigEntry("experts_per_token", "num_experts_per_tok"),
    ConfigEntry("expert_mlp_size", "moe_intermediate_size"),
)


def _with(entries: tuple[ConfigEntry, ...], *changed: ConfigEntry) -> tuple[ConfigEntry, ...]:
    fields = {entry.field for entry in changed}
    return (*(entry for entry in entries if entry.field not in fields), *changed)


class ConfigFamily(NamedTuple):
    """The config.json of one model type.

    `fixed`: fields of the Architecture that the file cannot change. `required`: keys, each with the values under which
    the Decoder computes the same function. `written`: keys that an export has in addition. `renamed`: other spellings
    of a key.
    """

    name: str  # of the class in transformers
    entries: tuple[ConfigEntry, ...] = _ROTARY
    fixed: Mapping[str, Any] = MappingProxyType({})
    required: tuple[tuple[str, tuple[object, ...]], ...] = ()
    written: Mapping[str, Any] = MappingProxyType({})
    renamed: Mapping[str, str] = MappingProxyType({})
    rotary_part: float = 1.0  # of a head, if config.json has no partial_rotary_factor


PARTS = ("learned_positions", "sliding_window", "experts")  # a decoder has one exactly if its family reads its size
_BLOCK: dict[str, Any] = {"biases": "none", "layer_norm": False, "gated_mlp": True}
_LLAMA = _BLOCK | {"qk_norm": False}
_QWEN3 = _BLOCK | {"qk_norm": True}
_SILU = ("hidden_act", ("silu", "swish", None))
_NO = (False, None)
_REQUIRED = (
    _SILU,
    ("attention_bias", _NO),
    ("mlp_bias", _NO),
    ("use_sliding_window", _NO),
    ("partial_rotary_factor", (1, None)),
)
_NO_BIASES = {"hidden_act": "silu", "attention_bias": False}

# Sources: the configuration and modelling files of each family in transformers 5.23. A new model is exported as the
# first family that has its features.
FAMILIES: Mapping[str, ConfigFamily] = {
    "llama": ConfigFamily("LlamaForCausalLM", fixed=_LLAMA, required=_REQUIRED, written=_NO_BIASES),
    "qwen3": ConfigFamily(
        "Qwen3ForCausalLM",
        _with(_ROTARY, ConfigEntry("head_dim", "head_dim", 128)),
        fixed=_QWEN3,
        required=_REQUIRED,
        written=_NO_BIASES,
    ),
    "qwen2": ConfigFamily(
        "Qwen2ForCausalLM",
        fixed=_LLAMA | {"biases": "qkv"},
        required=(_SILU, ("use_sliding_window", _NO), ("partial_rotary_factor", (1, None))),
        written={"hidden_act": "silu", "use_sliding_window": False},
    ),
    "mistral": ConfigFamily(
        "MistralForCausalLM",
        _with(_ROTARY, ConfigEntry("sliding_window", "sliding_window", 4096, read_window)),
        fixed=_LLAMA,
        required=_REQUIRED,
        written={"hidden_act": "silu"},
    ),
    "gpt2": ConfigFamily(
        "GPT2LMHeadModel",
        _GPT2,
        fixed={"biases": "all", "layer_norm": True, "gated_mlp": False, "qk_norm": False},
        required=(
            ("activation_function", ("gelu_new", "gelu_pytorch_tanh", None)),
            ("scale_attn_weights", (True, None)),
            ("scale_attn_by_inverse_layer_idx", _NO),
            ("add_cross_attention", _NO),
        ),
        written={"activation_function": "gelu_new", "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
    ),
    "qwen3_moe": ConfigFamily(
        "Qwen3MoeForCausalLM",
        _with(
            _ROTARY,
            ConfigEntry("experts", "num_experts"),
            *_EXPERTS,
            ConfigEntry("norm_expert_weights", "norm_topk_prob", default=False, read=read_flag),
        ),
        fixed=_QWEN3 | {"router": "softmax", "shared_experts": 0, "expert_scale": 1.0},
        required=(*_REQUIRED, ("decoder_sparse_step", (1, None)), ("mlp_only_layers", ([], None))),
        written=_NO_BIASES | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        renamed={"num_local_experts": "num_experts"},
    ),
    "glm4_moe": ConfigFamily(
        "Glm4MoeForCausalLM",
        _with(
            _ROTARY,
            ConfigEntry("norm_eps", "rms_norm_eps", 1e-5, read_positive),
            ConfigEntry("experts", "n_routed_experts"),
            *_EXPERTS,
            ConfigEntry("shared_experts", "n_shared_experts", 1, read_count),
            ConfigEntry("norm_expert_weights", "norm_topk_prob", default=True, read=read_flag),
            ConfigEntry("expert_scale", "routed_scaling_factor", 1.0, read_positive),
            ConfigEntry("qk_norm", "use_qk_norm", default=False, read=read_flag),
        ),
        fixed=_BLOCK | {"router": "sigmoid"},
        required=(*_REQUIRED, ("first_k_dense_replace", (0,)), ("n_group", (1, None)), ("topk_group", (1, None))),
        written=_NO_BIASES | {"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
        renamed={"num_local_experts": "n_routed_experts"},
        rotary_part=0.5,
    ),
}
