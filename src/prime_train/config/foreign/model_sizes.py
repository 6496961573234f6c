"""Finds the sizes of the model that a part names, MODEL in conditions: in its folder, else in the registry.

heads, kv_heads     of attention
hidden_size, layers, vocab_size
max_positions       the longest sequence that its positions have
experts             routed ones of a layer
parameters          only of the registry
hybrid              True if layers with a state of their own stand beside attention

A size that is not known is not there. A model of the hub that the registry does not have is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.config.foreign.follow import find_file
from prime_train.config.foreign.recipe.fields import formats, mapping_of, value_in
from prime_train.config.foreign.values import MOST_BYTES, ForeignPart
from prime_train.core import outside
from prime_train.registry.known import shape_row

Sizes = Mapping[str, Any]

_OTHERS = {"vllm-serve": ("model", "model_tag")}
# size -> the keys of config.json that may have it
_KEYS: Mapping[str, tuple[str, ...]] = {
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "hidden_size": ("hidden_size", "n_embd"),
    "layers": ("num_hidden_layers", "n_layer"),
    "vocab_size": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
}
_STATES = ("mamba_d_state", "mamba_n_heads", "ssm_state_size", "linear_num_value_heads", "state_size")
# Other kinds of scaling change the longest sequence, in a way that depends on the program.
_UNSCALED = frozenset({"default", "llama3", "mrope"})
_MOST = 10**9


def sizes_of(part: ForeignPart) -> Sizes:
    """The sizes of the model that a part names; empty if it names none, or they are not known."""
    name = named_model(part)
    return {} if name is None else _read_folder(name, part) or _read_registry(name)


def named_model(part: ForeignPart) -> str | None:
    """The name or folder of the model that a part names; None if it names none, or leaves it open."""
    names = (value_in(part.values, key) for key in keys_of_model(part.format))
    return next((name for name in names if isinstance(name, str) and name), None)


def keys_of_model(format_: str) -> Iterator[str]:
    """The dotted keys of a format that may name a model."""
    if format_ in _OTHERS:
        yield from _OTHERS[format_]
    elif format_ in formats():
        for way in mapping_of(format_)["recipe"].get("model_name", ()):
            keys = way.get("key", ())
            yield from [keys] if isinstance(keys, str) else keys


def _read_folder(name: str, part: ForeignPart) -> Sizes:
    path = None if part.moved else find_file(f"{name.rstrip('/')}/config.json", part.document.path)
    if path is None:
        return {}
    try:
        config = outside.read_json(path, MOST_BYTES)
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    inner = config.get("text_config")
    return _sizes(inner if isinstance(inner, dict) else config)


def _sizes(config: Mapping[str, Any]) -> Sizes:
    counts = {size: next((config[key] for key in keys if key in config), None) for size, keys in _KEYS.items()}
    found: dict[str, Any] = {size: count for size, count in counts.items() if type(count) is int and 0 < count < _MOST}
    found["kv_heads"] = found.get("kv_heads", found.get("heads"))
    if not _has_plain_positions(config):
        found.pop("max_positions", None)
    layers = config.get("layer_types")
    found["hybrid"] = any(key in config for key in _STATES) or (
        isinstance(layers, list) and any(kind in ("linear_attention", "mamba") for kind in layers)
    )
    return found


def _has_plain_positions(config: Mapping[str, Any]) -> bool:
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if scaling is None:
        return True
    return isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type", "default")) in _UNSCALED


def _read_registry(name: str) -> Sizes:
    row = shape_row(name)
    if row is None:
        return {}
    found = {size: row[size] for size in (*_KEYS, "parameters") if size in row}
    if row.get("ctx_tokens"):
        found["max_positions"] = row["ctx_tokens"]
    return found | {"hybrid": bool(row.get("linear_layers"))}
