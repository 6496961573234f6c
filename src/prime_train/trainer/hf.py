"""Reads and writes Hugging Face folders of Llama and Qwen3 models. Never imports transformers, never downloads.

A feature that the Decoder does not compute (biases, scaled rotary positions, sliding windows, quantised weights) is an
error that names it, because loading the folder anyway would train another model.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MODEL_BYTES
from prime_train.core.rundir import sync
from prime_train.spec.decoder_size import Architecture
from prime_train.spec.hf_config import SIZE_KEYS, describe_decoder
from prime_train.trainer.model import VOCAB_ROWS, Decoder, ModelConfig, parameter_shapes
from prime_train.trainer.shards import local_part, rows_of

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_HF_PARTS = {
    "embedding": "model.embed_tokens",
    "blocks": "model.layers",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "attention": "self_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "query_norm": "q_norm",
    "key_norm": "k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}


def load_weights(model: Decoder, folder: Path) -> None:
    """Copy the folder's weights into `model`, tensor by tensor, in the model's own dtype.

    UserError with the tensor's name where one is missing, unexpected or of another shape. Of a sharded model each
    process reads its own rows. Rows of a padded vocabulary become 0.
    """
    files = _tensor_files(folder)
    parameters = {hf_name(name): weight for name, weight in model.named_parameters()}
    # Old Llama folders contain the rotary frequencies, and some tied models the head: both are redundant.
    redundant = {"lm_head.weight"} if model.config.tie_embeddings else set()
    unexpected = {name for name in files if not name.endswith("rotary_emb.inv_freq")} - parameters.keys() - redundant
    if missing := parameters.keys() - files.keys():
        what = f"{_count(missing)} missing, first {min(missing)}"
        fix = "download the folder again, or correct its config.json"
        raise folder_error(what, folder, "the model of config.json has them", fix)
    if unexpected:
        what = f"{_count(unexpected)} without a place, first {min(unexpected)}"
        why = "without them the model would compute something else"
        raise folder_error(what, folder, why, "use a plain Llama or Qwen3 folder")
    of_tokens = {hf_name(name) for name in VOCAB_ROWS}
    shapes = {
        name: [model.config.vocab_size, *weight.shape[1:]] if name in of_tokens else list(weight.shape)
        for name, weight in parameters.items()
    }
    for path in sorted(set(files.values())):
        _copy_tensors(path, {name: weight for name, weight in parameters.items() if files[name] == path}, shapes)


@torch.no_grad()
def _copy_tensors(path: Path, parameters: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> None:
    try:
        with safe_open(path, framework="pt") as file:
            for name, weight in parameters.items():
                found = file.get_slice(name).get_shape()
                if isinstance(weight, DTensor) and found == shapes[name]:
                    first, last = (min(row, found[0]) for row in (rows_of(weight).start, rows_of(weight).stop))
                    stored = file.get_slice(name)[first:last] if first < last else torch.empty(0, *found[1:])
                else:
                    stored = file.get_tensor(name)
                if found != shapes[name] or not stored.is_floating_point():
                    what = f"{name} is {stored.dtype} {found}, expected floats {shapes[name]}"
                    fix = "correct config.json, or use the folder that belongs to it"
                    raise folder_error(what, path, "the weights do not fit config.json", fix)
                part = local_part(weight)
                part[len(stored) :].zero_()
                part[: len(stored)].copy_(stored)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _tensor_files(folder: Path) -> dict[str, Path]:
    """The file that holds each tensor."""
    index = folder / _INDEX
    if index.is_file():
        why = "it lists the file of each tensor"
        weight_map = read_json(index, why).get("weight_map")
        if not isinstance(weight_map, dict):
            raise folder_error("no weight_map", index, why)
        for file in set(map(str, weight_map.values())):
            if fault := outside.name_fault(file):
                raise folder_error(f"it names the file {file[:100]!r}: {fault}", index, why)
        return {name: folder / str(file) for name, file in weight_map.items()}
    path = folder / _WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def save(folder: Path, config: ModelConfig, weights: Mapping[str, Tensor], export: Export) -> None:
    """Write a folder that transformers loads with AutoModelForCausalLM. It appears complete or not at all.

    `weights` is the gathered state dict of a Decoder. An existing folder is replaced.
    """
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)  # left by a killed save
    beside.mkdir(parents=True)
    try:
        tensors = {hf_name(name): weights[name].detach().cpu().contiguous() for name in parameter_shapes(config)}
        save_file(tensors, beside / _WEIGHTS, metadata={"format": "pt"})
        (beside / "config.json").write_text(json.dumps(to_hf_config(config, export), indent=2) + "\n")
        for file in export.tokenizer_files:
            shutil.copyfile(file, beside / file.name)
        for path in [*beside.iterdir(), beside]:
            sync(path)
        _replace(folder, beside)
    except SafetensorError as error:
        raise _as_os_error(error, folder / _WEIGHTS) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _as_os_error(error: SafetensorError, path: Path) -> OSError:
    """An OSError with the number that safetensors writes only in its text: "... (os error 28)" on a full disk."""
    found = re.search(r"os error (\d+)", str(error))
    number = int(found.group(1)) if found else errno.EIO
    return OSError(number, f"cannot write: {os.strerror(number) if found else error}", str(path))


def _replace(folder: Path, beside: Path) -> None:
    """Replace `folder` by `beside`. A directory cannot be renamed onto one that is not empty."""
    aside = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    beside.rename(folder)
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def hf_name(name: str) -> str:
    """The Hugging Face name of a Decoder's parameter: "head.weight" is "lm_head.weight"."""
    return ".".join(_HF_PARTS.get(part, part) for part in name.split("."))


def _count(names: set[str]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _unreadable(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        fix = 'download the folder again, or set model.init = "random" to use only its architecture'
        return folder_error("is missing", path, "the weights are read from safetensors files only", fix)
    return folder_error(f"cannot be read: {error}", path, "the file is damaged or truncated")


# The defaults of transformers for keys that config.json omits (LlamaConfig and Qwen3Config, 5.23).
_DEFAULT_HEAD_DIM = {"llama": None, "qwen3": 128}
_DEFAULT_NORM_EPS = 1e-6
_DEFAULT_ROPE_THETA = 10000.0
_CORRECT = "correct config.json, or download the folder again"

# (key, the values under which the Decoder computes the same function)
_REQUIRED = (
    ("hidden_act", ("silu", "swish", None)),
    ("attention_bias", (False, None)),
    ("mlp_bias", (False, None)),
    ("use_sliding_window", (False, None)),
    ("partial_rotary_factor", (1, 1.0, None)),
    ("quantization_config", (None,)),
)


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
    if not isinstance(model_type, str) or model_type not in _DEFAULT_HEAD_DIM:
        raise _unsupported(
            path, f"model_type = {json.dumps(model_type)}", "only llama and qwen3 have the architecture of this decoder"
        )
    for key, supported in _REQUIRED:
        if raw.get(key) not in supported:
            raise _unsupported(path, f"{key} = {json.dumps(raw[key])}", "this decoder does not compute it")
    heads = _integer(raw, "num_attention_heads", path)
    head_dim = _DEFAULT_HEAD_DIM[model_type] or _integer(raw, "hidden_size", path) // heads
    defaults = {"kv_heads": heads, "head_dim": head_dim}
    config = ModelConfig(
        **{ours: _integer(raw, theirs, path, defaults.get(ours)) for ours, theirs in SIZE_KEYS.items()},
        rope_theta=_rope_theta(raw, path),
        norm_eps=_positive(raw, "rms_norm_eps", path, _DEFAULT_NORM_EPS),
        tie_embeddings=_flag(raw, "tie_word_embeddings", path),
        qk_norm=model_type == "qwen3",
        pad_vocab=False,
    )
    if config.heads % config.kv_heads:
        what = f"num_key_value_heads = {config.kv_heads} does not divide num_attention_heads = {config.heads}"
        raise folder_error(what, path, "each key and value head serves the same number of query heads", _CORRECT)
    if config.head_dim % 2:
        what = f"head_dim = {config.head_dim} is odd"
        raise folder_error(what, path, "rotary positions turn the dimensions of a head in pairs", _CORRECT)
    return config


def _rope_theta(raw: Mapping[str, Any], path: Path) -> float:
    """The base of unscaled rotary positions. transformers 5 nests the key, which is top-level in version 4."""
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(nested, dict):
        raise folder_error(f"rope_parameters = {json.dumps(nested)[:100]}", path, "it must be an object", _CORRECT)
    rope_type = nested.get("rope_type", nested.get("type", "default"))
    if rope_type != "default":
        raise _unsupported(path, f"rope_type = {json.dumps(rope_type)}", "this decoder has unscaled rotary positions")
    if nested.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(path, "partial_rotary_factor below 1", "this decoder rotates whole heads")
    return _positive(nested if "rope_theta" in nested else raw, "rope_theta", path, _DEFAULT_ROPE_THETA)


def _positive(raw: Mapping[str, Any], key: str, path: Path, default: float) -> float:
    value = raw.get(key, default)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise folder_error(f"{key} = {json.dumps(value)}", path, "it must be a positive number", _CORRECT)
    return float(value)


def _flag(raw: Mapping[str, Any], key: str, path: Path) -> bool:
    value = raw.get(key, False)
    if type(value) is not bool:
        raise folder_error(f"{key} = {json.dumps(value)}", path, "it must be true or false", _CORRECT)
    return value


def _integer(raw: Mapping[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if type(value) is not int or value <= 0:
        what = f"{key} = {json.dumps(value)}" if key in raw else f"{key} is missing"
        raise folder_error(what, path, "the architecture needs a positive whole number")
    return value


def to_hf_config(config: ModelConfig, export: Export) -> dict[str, Any]:
    """The content of config.json."""
    sizes = Architecture(**{name: getattr(config, name) for name in Architecture._fields})
    return describe_decoder(
        sizes,
        rope_theta=config.rope_theta,
        norm_eps=config.norm_eps,
        ctx_tokens=export.ctx_tokens,
        stop_token=export.stop_token,
    )


def read_json(path: Path, why: str) -> dict[str, Any]:
    """The JSON object in a file of the folder. UserError with `why` where it cannot be read."""
    try:
        raw = outside.read_json(path, MODEL_BYTES)
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
