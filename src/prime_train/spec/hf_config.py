"""Reads and writes the config.json of a Hugging Face folder, and judges whether it can be trained. Without torch.

A family is a row of a table: the names of its sizes, and what its decoder has that the file cannot change. A feature
that the Decoder does not compute (other biases, rotary positions of a part of a head, quantised weights) is refused by
name, because training the folder anyway would train another model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from prime_train.core.errors import UserError
from prime_train.spec.decoder_size import Architecture, RopeScaling

_CORRECT = "correct config.json, or download the folder again"
_NOT_COMPUTED = "this decoder does not compute it"
_NEEDED = object()

# --- the keys -------------------------------------------------------------------------------------


class _Raw(NamedTuple):
    """A config.json and the place that an error names."""

    values: Mapping[str, Any]
    where: str


Read = Callable[[_Raw, str, Any], object]  # of a key, with its default: the value, or UserError


def _integer(raw: _Raw, key: str, default: Any, least: int = 1) -> int:
    value = raw.values.get(key)
    value = default if value is None else value
    if type(value) is not int or value < least:
        what = f"{key} = {_shown(value)}" if key in raw.values else f"{key} is missing"
        why = f"the architecture needs a {'positive ' if least else ''}whole number"
        raise config_error(what, raw.where, why, "download the folder again")
    return value


def _count(raw: _Raw, key: str, default: Any) -> int:
    return _integer(raw, key, default, least=0)


def _window(raw: _Raw, key: str, default: Any) -> int | None:
    value = raw.values.get(key, default)
    return None if value is None else _integer(raw, key, default)


def _positive(raw: _Raw, key: str, default: Any) -> float:
    value = raw.values.get(key, default)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise config_error(f"{key} = {_shown(value)}", raw.where, "it must be a positive number")
    return float(value)


def _flag(raw: _Raw, key: str, default: Any) -> bool:
    value = raw.values.get(key, default)
    if type(value) is not bool:
        raise config_error(f"{key} = {_shown(value)}", raw.where, "it must be true or false")
    return value


class _Entry(NamedTuple):
    """A field of the Architecture and its key; "" for a field that is always the default. A key that is omitted has the
    default of transformers 5, which may depend on the fields before it."""

    field: str
    key: str
    default: Any = _NEEDED  # a value, or a function of the fields that are read
    read: Read = _integer


def _per_head(fields: Mapping[str, Any]) -> int:
    return int(fields["hidden_size"] // fields["heads"])


_ROTARY = (
    _Entry("vocab_size", "vocab_size"),
    _Entry("layers", "num_hidden_layers"),
    _Entry("hidden_size", "hidden_size"),
    _Entry("heads", "num_attention_heads"),
    _Entry("kv_heads", "num_key_value_heads", lambda fields: fields["heads"]),
    _Entry("head_dim", "head_dim", _per_head),
    _Entry("mlp_size", "intermediate_size"),
    _Entry("norm_eps", "rms_norm_eps", 1e-6, _positive),
    _Entry("tie_embeddings", "tie_word_embeddings", default=False, read=_flag),
)
_GPT2 = (
    _Entry("vocab_size", "vocab_size"),
    _Entry("layers", "n_layer"),
    _Entry("hidden_size", "n_embd"),
    _Entry("heads", "n_head"),
    _Entry("kv_heads", "", lambda fields: fields["heads"]),
    _Entry("head_dim", "", _per_head),
    _Entry("mlp_size", "n_inner", lambda fields: 4 * fields["hidden_size"]),
    _Entry("learned_positions", "n_positions"),
    _Entry("norm_eps", "layer_norm_epsilon", 1e-5, _positive),
    _Entry("tie_embeddings", "tie_word_embeddings", default=True, read=_flag),
)
_EXPERTS = (
    _Entry("experts_per_token", "num_experts_per_tok"),
    _Entry("expert_mlp_size", "moe_intermediate_size"),
)


def _with(entries: tuple[_Entry, ...], *changed: _Entry) -> tuple[_Entry, ...]:
    fields = {entry.field for entry in changed}
    return (*(entry for entry in entries if entry.field not in fields), *changed)


# --- the families ---------------------------------------------------------------------------------


class _Family(NamedTuple):
    """The config.json of one model type. `fixed`: fields of the Architecture that the file cannot change.
    `required`: keys, each with the values under which the Decoder computes the same function. `written`: keys that an
    export has in addition. `renamed`: other spellings of a key."""

    name: str  # of the class in transformers
    entries: tuple[_Entry, ...] = _ROTARY
    fixed: Mapping[str, Any] = MappingProxyType({})
    required: tuple[tuple[str, tuple[object, ...]], ...] = ()
    written: Mapping[str, Any] = MappingProxyType({})
    renamed: Mapping[str, str] = MappingProxyType({})
    rotary_part: float = 1.0  # of a head, if config.json has no partial_rotary_factor


_PARTS = ("learned_positions", "sliding_window", "experts")  # a decoder has one exactly if its family reads its size
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
FAMILIES: Mapping[str, _Family] = {
    "llama": _Family("LlamaForCausalLM", fixed=_LLAMA, required=_REQUIRED, written=_NO_BIASES),
    "qwen3": _Family(
        "Qwen3ForCausalLM",
        _with(_ROTARY, _Entry("head_dim", "head_dim", 128)),
        fixed=_QWEN3,
        required=_REQUIRED,
        written=_NO_BIASES,
    ),
    "qwen2": _Family(
        "Qwen2ForCausalLM",
        fixed=_LLAMA | {"biases": "qkv"},
        required=(_SILU, ("use_sliding_window", _NO), ("partial_rotary_factor", (1, None))),
        written={"hidden_act": "silu", "use_sliding_window": False},
    ),
    "mistral": _Family(
        "MistralForCausalLM",
        _with(_ROTARY, _Entry("sliding_window", "sliding_window", 4096, _window)),
        fixed=_LLAMA,
        required=_REQUIRED,
        written={"hidden_act": "silu"},
    ),
    "gpt2": _Family(
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
    "qwen3_moe": _Family(
        "Qwen3MoeForCausalLM",
        _with(
            _ROTARY,
            _Entry("experts", "num_experts"),
            *_EXPERTS,
            _Entry("norm_expert_weights", "norm_topk_prob", default=False, read=_flag),
        ),
        fixed=_QWEN3 | {"router": "softmax", "shared_experts": 0, "expert_scale": 1.0},
        required=(*_REQUIRED, ("decoder_sparse_step", (1, None)), ("mlp_only_layers", ([], None))),
        written=_NO_BIASES | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        renamed={"num_local_experts": "num_experts"},
    ),
    "glm4_moe": _Family(
        "Glm4MoeForCausalLM",
        _with(
            _ROTARY,
            _Entry("norm_eps", "rms_norm_eps", 1e-5, _positive),
            _Entry("experts", "n_routed_experts"),
            *_EXPERTS,
            _Entry("shared_experts", "n_shared_experts", 1, _count),
            _Entry("norm_expert_weights", "norm_topk_prob", default=True, read=_flag),
            _Entry("expert_scale", "routed_scaling_factor", 1.0, _positive),
            _Entry("qk_norm", "use_qk_norm", default=False, read=_flag),
        ),
        fixed=_BLOCK | {"router": "sigmoid"},
        required=(*_REQUIRED, ("first_k_dense_replace", (0,)), ("n_group", (1, None)), ("topk_group", (1, None))),
        written=_NO_BIASES | {"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
        renamed={"num_local_experts": "n_routed_experts"},
        rotary_part=0.5,
    ),
}
MODEL_TYPES = tuple(FAMILIES)
_WHY_TYPES = f"the bundled trainer trains {', '.join(MODEL_TYPES[:-1])} and {MODEL_TYPES[-1]}"


def find_model_type(architecture: Architecture) -> str:
    """The model type of config.json; "" if no family has this combination of features."""
    return architecture.model_type or next(
        (name for name, family in FAMILIES.items() if _has_features(architecture, family)), ""
    )


def _has_features(architecture: Architecture, family: _Family) -> bool:
    read = {entry.field for entry in family.entries}
    return all(getattr(architecture, name) == value for name, value in family.fixed.items()) and all(
        bool(getattr(architecture, part)) == (part in read) for part in _PARTS
    )


# --- reading --------------------------------------------------------------------------------------


def read_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture of a config.json. UserError with `where` if the Decoder does not compute it.

    This is the one judge of what the bundled trainer can train.
    """
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise _unsupported(f"model_type = {_shown(model_type)}", where, _WHY_TYPES)
    spelled = {other: key for other, key in family.renamed.items() if config.get(key) is None}
    raw = _Raw({spelled.get(key, key): value for key, value in config.items()}, where)
    for key, supported in (*family.required, ("quantization_config", (None,))):
        if raw.values.get(key) not in supported:
            raise _unsupported(f"{key} = {_shown(raw.values.get(key))}", where, _NOT_COMPUTED)
    _check_layer_types(raw)
    fields = dict(family.fixed)
    for entry in family.entries:
        default = entry.default(fields) if callable(entry.default) else entry.default
        fields[entry.field] = entry.read(raw, entry.key, default) if entry.key else default
    if not fields.get("learned_positions"):
        fields["rope_theta"], fields["rope_scaling"] = _read_rope(raw, family)
    architecture = Architecture(**fields)
    _check_sizes(architecture, where)
    return architecture if find_model_type(architecture) == model_type else _named(architecture, str(model_type))


def _named(architecture: Architecture, model_type: str) -> Architecture:
    """The architecture with the type that its fields alone do not tell: a Mistral without a window is a Llama."""
    from dataclasses import replace  # here, because a lint needs no dataclasses

    return replace(architecture, model_type=model_type)


def _check_layer_types(raw: _Raw) -> None:
    types = raw.values.get("layer_types") or []
    others = [name for name in types if name != "full_attention"] if isinstance(types, list) else [types]
    if others:
        raise _unsupported(f"layer_types has {_shown(others[0])}", raw.where, _NOT_COMPUTED)


def _check_sizes(sizes: Architecture, where: str) -> None:
    if sizes.heads % sizes.kv_heads:
        what = f"num_key_value_heads = {sizes.kv_heads} does not divide num_attention_heads = {sizes.heads}"
        raise config_error(what, where, "each key and value head serves the same number of query heads")
    if sizes.learned_positions and sizes.hidden_size % sizes.heads:
        what = f"n_head = {sizes.heads} does not divide n_embd = {sizes.hidden_size}"
        raise config_error(what, where, "the heads share the width of the residual stream")
    if not sizes.learned_positions and sizes.head_dim % 2:
        what = f"head_dim = {sizes.head_dim} is odd"
        raise config_error(what, where, "rotary positions turn the dimensions of a head in pairs")
    if sizes.experts_per_token > sizes.experts:
        what = f"num_experts_per_tok = {sizes.experts_per_token} is more than the {sizes.experts} experts"
        raise config_error(what, where, "a token visits each expert at most once")


def _read_rope(raw: _Raw, family: _Family) -> tuple[float, RopeScaling | None]:
    """Base and scaling of rotary positions. transformers 5 nests the base, which is top-level in version 4."""
    nested = raw.values.get("rope_parameters") or raw.values.get("rope_scaling") or {}
    if not isinstance(nested, dict):
        raise config_error(f"rope_parameters = {_shown(nested)}", raw.where, "it must be an object")
    usual = raw.values.get("partial_rotary_factor") or family.rotary_part
    if nested.get("partial_rotary_factor", usual) != 1:
        raise _unsupported("partial_rotary_factor below 1", raw.where, "this decoder rotates whole heads")
    theta = _positive(raw if "rope_theta" not in nested else _Raw(nested, raw.where), "rope_theta", 10000.0)
    rope_type = nested.get("rope_type", nested.get("type", "default"))
    if rope_type == "default":
        return theta, None
    if rope_type != "llama3":
        why = "this decoder has rotary positions without scaling, or with that of Llama 3"
        raise _unsupported(f"rope_type = {_shown(rope_type)}", raw.where, why)
    return theta, _read_scaling(_Raw(nested, raw.where))


_SCALING_KEYS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}


def _read_scaling(nested: _Raw) -> RopeScaling:
    missing = [key for key in _SCALING_KEYS.values() if nested.values.get(key) is None]
    if missing:
        why = "the scaling of Llama 3 is computed from it"
        raise config_error(f'rope_type = "llama3" without {missing[0]}', nested.where, why)
    factor, low, high = (
        _positive(nested, _SCALING_KEYS[name], None) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    if not low < high:
        what = f'rope_type = "llama3" with low_freq_factor = {low:g} and high_freq_factor = {high:g}'
        raise config_error(what, nested.where, "the frequencies between the two are interpolated")
    return RopeScaling(factor, low, high, _integer(nested, _SCALING_KEYS["original_positions"], None))


def find_context_limit(architecture: Architecture) -> tuple[int, str] | None:
    """The longest context in tokens that the Decoder computes, and the reason; None without a limit."""
    if architecture.learned_positions:
        return architecture.learned_positions, "the model has a learned position for no more tokens"
    if architecture.sliding_window is not None:
        return architecture.sliding_window, "the model attends to a sliding window of that many tokens"
    return None


# --- writing --------------------------------------------------------------------------------------


def describe_decoder(sizes: Architecture, *, ctx_tokens: int, stop_token: int | None = None) -> dict[str, Any]:
    """The content of config.json. The rotary base is written for transformers 4 and for 5.

    UserError if no family has this combination of features.
    """
    model_type = find_model_type(sizes)
    if not model_type:
        raise UserError(
            what="no model type of Hugging Face has this combination of features",
            where="model",
            why="softmax routing is that of qwen3_moe: with query and key norms, and without shared experts",
            fix='model.router = "sigmoid"',
        )
    family = FAMILIES[model_type]
    ends = {"bos_token_id": None, "eos_token_id": stop_token, "dtype": "float32"}
    return {
        "architectures": [family.name],
        "model_type": model_type,
        **{entry.key: getattr(sizes, entry.field) for entry in family.entries if entry.key},
        **family.written,
        **({} if sizes.learned_positions else _describe_rope(sizes, family, ctx_tokens)),
        **ends,
    }


def _describe_rope(sizes: Architecture, family: _Family, ctx_tokens: int) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": sizes.rope_theta}
    flat: dict[str, Any] = {"rope_theta": sizes.rope_theta, "max_position_embeddings": ctx_tokens}
    if sizes.rope_scaling is not None:
        scaling = {key: getattr(sizes.rope_scaling, name) for name, key in _SCALING_KEYS.items()}
        rope |= {"rope_type": "llama3", **scaling}
        flat["rope_scaling"] = {"rope_type": "llama3", **scaling}
    if family.rotary_part != 1.0:
        rope["partial_rotary_factor"] = flat["partial_rotary_factor"] = 1.0
    return flat | {"rope_parameters": rope}


# --- errors ---------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    return "null" if value is _NEEDED else json.dumps(value, default=str)[:100]


def config_error(what: str, where: str, why: str, fix: str = _CORRECT) -> UserError:
    """The error of a config.json that cannot be used."""
    return UserError(what=what, where=where, why=why, fix=fix)


def _unsupported(what: str, where: str, why: str) -> UserError:
    return config_error(what, where, why, "set model.path to a folder of a supported model")
