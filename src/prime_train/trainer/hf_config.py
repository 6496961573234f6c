"""Reads and writes config.json of Hugging Face folders of Llama and Qwen3 models. Never touches weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_train.core.errors import UserError
from prime_train.trainer.model import ModelConfig

# The defaults of transformers for keys that config.json omits (LlamaConfig and Qwen3Config, 5.23).
_DEFAULT_HEAD_DIM = {"llama": None, "qwen3": 128}
_DEFAULT_NORM_EPS = 1e-6
_DEFAULT_ROPE_THETA = 10000.0

# (key, the values under which the Decoder computes the same function)
_REQUIRED = (
    ("hidden_act", ("silu", "swish", None)),
    ("attention_bias", (False, None)),
    ("mlp_bias", (False, None)),
    ("use_sliding_window", (False, None)),
    ("partial_rotary_factor", (1, 1.0, None)),
    ("quantization_config", (None,)),
)


_SIZES = {
    "vocab_size": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_size": "intermediate_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The content of a Hugging Face folder besides the weights."""

    ctx_tokens: int
    stop_token: int | None = None
    tokenizer_files: tuple[Path, ...] = ()


def read_config(folder: Path) -> ModelConfig:
    """The architecture of a Hugging Face folder. UserError where the Decoder does not support it."""
    path = folder / "config.json"
    raw = read_json(path, "a Hugging Face model folder has a config.json")
    model_type = raw.get("model_type")
    if model_type not in _DEFAULT_HEAD_DIM:
        raise _unsupported(
            path, f"model_type = {json.dumps(model_type)}", "only llama and qwen3 have the architecture of this decoder"
        )
    for key, supported in _REQUIRED:
        if raw.get(key) not in supported:
            raise _unsupported(path, f"{key} = {json.dumps(raw[key])}", "this decoder does not compute it")
    heads = _integer(raw, "num_attention_heads", path)
    head_dim = _DEFAULT_HEAD_DIM[model_type] or _integer(raw, "hidden_size", path) // heads
    defaults = {"kv_heads": heads, "head_dim": head_dim}
    return ModelConfig(
        **{ours: _integer(raw, theirs, path, defaults.get(ours)) for ours, theirs in _SIZES.items()},
        rope_theta=_rope_theta(raw, path),
        norm_eps=float(raw.get("rms_norm_eps", _DEFAULT_NORM_EPS)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qk_norm=model_type == "qwen3",
    )


def _rope_theta(raw: Mapping[str, Any], path: Path) -> float:
    """The base of unscaled rotary positions. transformers 5 nests the key, which is top-level in version 4."""
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope_type = nested.get("rope_type", nested.get("type", "default"))
    if rope_type != "default":
        raise _unsupported(path, f"rope_type = {json.dumps(rope_type)}", "this decoder has unscaled rotary positions")
    if nested.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(path, "partial_rotary_factor below 1", "this decoder rotates whole heads")
    return float(nested.get("rope_theta", raw.get("rope_theta", _DEFAULT_ROPE_THETA)))


def _integer(raw: Mapping[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if type(value) is not int or value <= 0:
        what = f"{key} = {json.dumps(value)}" if key in raw else f"{key} is missing"
        raise folder_error(what, path, "the architecture needs a positive whole number")
    return value


def to_hf_config(config: ModelConfig, export: Export) -> dict[str, Any]:
    """The content of config.json. The rotary base is written for transformers 4 and for 5."""
    qwen3 = config.qk_norm
    return {
        "architectures": ["Qwen3ForCausalLM" if qwen3 else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen3 else "llama",
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
        "max_position_embeddings": export.ctx_tokens,
        "bos_token_id": None,
        "eos_token_id": export.stop_token,
        "dtype": "float32",
    }


def read_json(path: Path, why: str) -> dict[str, Any]:
    """The JSON object in a file of the folder. UserError with `why` where it cannot be read."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise folder_error(
            f"cannot be read: {error.strerror}", path, why, "set model.path to a Hugging Face model folder"
        ) from error
    except ValueError as error:
        raise folder_error(f"not JSON: {error}", path, why) from error
    if not isinstance(raw, dict):
        raise folder_error("not a JSON object", path, why)
    return raw


def _unsupported(path: Path, what: str, why: str) -> UserError:
    return folder_error(what, path, why, "set model.path to a plain Llama or Qwen3 folder")


def folder_error(what: str, path: Path, why: str, fix: str = "download the folder again") -> UserError:
    """The error of a folder that cannot be used."""
    return UserError(what=what, where=str(path), why=why, fix=fix)
