"""Finds values in a config.json that transformers refuses, or that make every output NaN. Pure.

Sources: transformers 5.23, the fields of each configuration class, activations.ACT2FN, modeling_rope_utils and
torch.nn.Embedding, which refuses a padding token outside the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.models.read.config import ModelConfigFile
from prime_train.toml.did_you_mean import nearest

_ACTIVATIONS = frozenset(
    (
        *("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_python_tanh"),
        *("gelu_accurate", "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2"),
        *("relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "prelu", "xielu"),
    )
)
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", "layernorm_epsilon")
_FLAGS = ("tie_word_embeddings", "use_cache", "attention_bias", "mlp_bias", "use_sliding_window", "is_encoder_decoder")
_FRACTIONS = ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop")
_COUNTS = ("max_position_embeddings", "n_positions", "num_experts_per_tok", "head_dim")
_DTYPES = ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2", "auto")
_ROPE_KEYS: Mapping[str, tuple[str, ...]] = {  # the keys without which a kind of scaling cannot be computed
    "default": (),
    "mrope": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "su": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "proportional": (),
}
_WRITTEN_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class ConfigFault(NamedTuple):
    """A key of config.json with a bad value: `what` completes "KEY ...", `legal` describes the legal values."""

    key: str
    what: str
    why: str
    legal: str


def find_config_faults(config: ModelConfigFile) -> Iterator[ConfigFault]:
    """The faults, in the order of the checks."""
    text = config.text
    not_finite = "each norm divides by it, so every output of the model would be NaN or zero"
    yield from _wrong(text, _EPS, _is_eps, not_finite, "a number between 0 and 1, for example 1e-6")
    yield from _wrong(text, ("rope_theta",), _is_positive, "the rotary angles are powers of it", "a number above 0")
    yield from _wrong(text, _FLAGS, lambda v: isinstance(v, bool), "transformers refuses the file", "true or false")
    yield from _wrong(text, _FRACTIONS, _is_fraction, "it is a probability", "a number from 0 to 1")
    yield from _wrong(text, _COUNTS, _is_count, "transformers refuses the file", "a whole number above 0")
    yield from _activation(text)
    yield from _dtype(text)
    yield from _padding(config)
    yield from _layer_types(text)
    yield from _rope(text)


def _wrong(
    text: Mapping[str, Any], keys: tuple[str, ...], is_legal: Callable[[Any], bool], why: str, legal: str
) -> Iterator[ConfigFault]:
    for key in keys:
        value = text.get(key)
        if value is not None and not is_legal(value):
            yield ConfigFault(key, f"is {_written(value)}", why, legal)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_eps(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value < 1  # transformers refuses a whole number


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_fraction(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _written(value: Any) -> str:
    """The value as text; transformers 5 writes a float without a JSON form as {"__float__": "NaN"}."""
    if isinstance(value, Mapping) and value.get("__float__") in _WRITTEN_FLOATS:
        return str(value["__float__"])
    return repr(value)[:40]


def _activation(text: Mapping[str, Any]) -> Iterator[ConfigFault]:
    for key in ("hidden_act", "hidden_activation", "activation_function"):
        name = text.get(key)
        if name is None or "auto_map" in text or (isinstance(name, str) and name in _ACTIVATIONS):
            continue
        similar = nearest(name, _ACTIVATIONS) if isinstance(name, str) else None
        yield ConfigFault(
            key,
            f"is {_written(name)}",
            "transformers knows no activation with that name",
            f"{similar or 'silu'}, as the original model's config.json has it",
        )


def _dtype(text: Mapping[str, Any]) -> Iterator[ConfigFault]:
    key = "dtype" if text.get("dtype") is not None else "torch_dtype"
    name = text.get(key)
    if name is None or isinstance(name, Mapping):  # transformers 5: one dtype per part of a multimodal model
        return
    if not isinstance(name, str) or name.removeprefix("torch.") not in _DTYPES:
        yield ConfigFault(key, f"is {_written(name)}", "torch has no dtype with that name", ", ".join(_DTYPES[:3]))


def _padding(config: ModelConfigFile) -> Iterator[ConfigFault]:
    token, rows = config.text.get("pad_token_id"), config.shape.vocab_size if config.shape is not None else 0
    if type(token) is int and rows and not -rows <= token < rows:
        yield ConfigFault(
            "pad_token_id",
            f"is {token}, and vocab_size is {rows}",
            "torch refuses an embedding whose padding token has no row",
            f"null, or a token below {rows}",
        )


def _layer_types(text: Mapping[str, Any]) -> Iterator[ConfigFault]:
    kinds, layers = text.get("layer_types"), text.get("num_hidden_layers")
    if isinstance(kinds, list) and type(layers) is int and len(kinds) != layers:
        yield ConfigFault(
            "layer_types",
            f"lists {len(kinds)} layers, and num_hidden_layers is {layers}",
            "transformers refuses the file",
            f"a list of {layers} kinds",
        )


def _rope(text: Mapping[str, Any]) -> Iterator[ConfigFault]:
    key = next((name for name in ("rope_parameters", "rope_scaling") if text.get(name) is not None), "")
    table = text.get(key) if key else None
    if table is None:
        return
    if not isinstance(table, Mapping):
        yield ConfigFault(key, f"is {_written(table)}", "transformers refuses the file", "a table, or null")
        return
    if any(isinstance(value, Mapping) for value in table.values()):
        return  # one table per kind of layer
    yield from _two_kinds(table, key)
    kind = table.get("rope_type") or table.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE_KEYS:
        if "deepseek" not in str(kind) and not any(key in text for key in ("auto_map", "kv_lora_rank")):
            yield ConfigFault(
                f"{key}.rope_type",
                f"is {_written(kind)}",
                "transformers computes no angles of that kind",
                ", ".join(_ROPE_KEYS),
            )
        return
    for name in _ROPE_KEYS[kind]:
        if table.get(name) is None:
            yield ConfigFault(
                f"{key}.{name}", "is missing", f"RoPE of the kind {kind} is computed from it", "the model's own value"
            )
    for name in ("rope_theta", "factor"):
        if table.get(name) is not None and not _is_positive(table[name]):
            yield ConfigFault(
                f"{key}.{name}", f"is {_written(table[name])}", "the rotary angles need it", "a number above 0"
            )


# Pairs (rope_type, type) that vLLM takes for the same kind. Source: vLLM, patch_rope_scaling_dict.
_SAME_KIND = frozenset({("longrope", "su"), ("default", "mrope")})


def _two_kinds(table: Mapping[str, Any], key: str) -> Iterator[ConfigFault]:
    """The key that transformers had before 4.43 beside its successor, with another kind."""
    kind, old = table.get("rope_type"), table.get("type")
    if kind is None or old is None or kind == old or (kind, old) in _SAME_KIND:
        return
    yield ConfigFault(
        f"{key}.type",
        f"is {_written(old)}, and {key}.rope_type is {_written(kind)}",
        "vLLM refuses two kinds of RoPE scaling, and transformers reads only one of them",
        f"{_written(kind)} if the model was trained so, else remove the wrong one of both keys",
    )
