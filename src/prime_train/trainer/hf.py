"""Reads and writes Hugging Face folders of Llama and Qwen3 models. Never imports transformers, never downloads.

What the Decoder does not compute (biases, scaled rotary positions, sliding windows, quantised
weights) is refused by name: loading it anyway would train another model than the one asked for.
"""

from __future__ import annotations

import errno
import json
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

from prime_train.errors import ExitCode, UserError
from prime_train.trainer.model import Decoder, ModelConfig, parameter_shapes

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# What transformers takes for a key that config.json leaves out (LlamaConfig and Qwen3Config, 5.23).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a Hugging Face folder has beside the weights."""

    ctx_tokens: int
    stop_token: int | None = None
    tokenizer_files: tuple[Path, ...] = ()


def read_config(folder: Path) -> ModelConfig:
    """The architecture of a Hugging Face folder. UserError for one that the Decoder does not have."""
    path = folder / "config.json"
    raw = _read_json(path, "a Hugging Face model folder has a config.json")
    model_type = raw.get("model_type")
    if model_type not in _DEFAULT_HEAD_DIM:
        raise _refused(
            path, f"model_type = {json.dumps(model_type)}", "only llama and qwen3 have the architecture of this decoder"
        )
    for key, fitting in _REQUIRED:
        if raw.get(key) not in fitting:
            raise _refused(path, f"{key} = {json.dumps(raw[key])}", "this decoder does not compute it")
    heads = _integer(raw, "num_attention_heads", path)
    hidden_size = _integer(raw, "hidden_size", path)
    return ModelConfig(
        vocab_size=_integer(raw, "vocab_size", path),
        layers=_integer(raw, "num_hidden_layers", path),
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=_integer(raw, "num_key_value_heads", path, heads),
        head_dim=_integer(raw, "head_dim", path, _DEFAULT_HEAD_DIM[model_type] or hidden_size // heads),
        mlp_size=_integer(raw, "intermediate_size", path),
        rope_theta=_rope_theta(raw, path),
        norm_eps=float(raw.get("rms_norm_eps", _DEFAULT_NORM_EPS)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qk_norm=model_type == "qwen3",
    )


def _rope_theta(raw: Mapping[str, Any], path: Path) -> float:
    """The base of unscaled rotary positions, from either spelling: transformers 5 nests what 4 had flat."""
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope_type = nested.get("rope_type", nested.get("type", "default"))
    if rope_type != "default":
        raise _refused(path, f"rope_type = {json.dumps(rope_type)}", "this decoder has unscaled rotary positions")
    if nested.get("partial_rotary_factor", 1.0) != 1.0:
        raise _refused(path, "partial_rotary_factor below 1", "this decoder rotates whole heads")
    return float(nested.get("rope_theta", raw.get("rope_theta", _DEFAULT_ROPE_THETA)))


def _integer(raw: Mapping[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if type(value) is not int or value <= 0:
        said = f"{key} = {json.dumps(value)}" if key in raw else f"{key} is missing"
        raise _failed(said, path, "the architecture needs a positive whole number", "download the folder again")
    return value


def load_weights(model: Decoder, folder: Path) -> None:
    """Copy the folder's weights into `model`, tensor by tensor, in the model's own dtype.

    UserError, naming the tensor, where one is missing, left over or of another shape. Call it before
    the model is sharded.
    """
    files = _tensor_files(folder)
    parameters = {_their_name(name): weight for name, weight in model.named_parameters()}
    # Old Llama folders carry the rotary frequencies, and some tied ones the head: both are implied.
    implied = {"lm_head.weight"} if model.config.tie_embeddings else set()
    left_over = {name for name in files if not name.endswith("rotary_emb.inv_freq")} - parameters.keys() - implied
    if missing := parameters.keys() - files.keys():
        raise _failed(
            f"{_count(missing, 'tensor')} missing, first {min(missing)}",
            folder,
            "config.json promises them",
            "download the folder again, or correct its config.json",
        )
    if left_over:
        raise _failed(
            f"{_count(left_over, 'tensor')} without a place, first {min(left_over)}",
            folder,
            "without them the model would compute something else",
            "take a plain Llama or Qwen3 folder",
        )
    for path in sorted(set(files.values())):
        _copy_tensors(path, {name: weight for name, weight in parameters.items() if files[name] == path})


@torch.no_grad()
def _copy_tensors(path: Path, parameters: Mapping[str, Tensor]) -> None:
    try:
        with safe_open(path, framework="pt") as file:
            for name, weight in parameters.items():
                stored = file.get_tensor(name)
                if stored.shape != weight.shape or not stored.is_floating_point():
                    raise _failed(
                        f"{name} is {stored.dtype} {list(stored.shape)}, expected floats {list(weight.shape)}",
                        path,
                        "the weights do not fit config.json",
                        "correct config.json, or take the folder that belongs to it",
                    )
                weight.copy_(stored)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _tensor_files(folder: Path) -> dict[str, Path]:
    """The file that holds each tensor."""
    index = folder / _INDEX
    if index.is_file():
        weight_map = _read_json(index, "it says which file holds which tensor").get("weight_map")
        if not isinstance(weight_map, dict):
            raise _failed("no weight_map", index, "it says which file holds which tensor", "download the folder again")
        return {name: folder / str(file) for name, file in weight_map.items()}
    path = folder / _WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def save(folder: Path, config: ModelConfig, weights: Mapping[str, Tensor], export: Export) -> None:
    """Write a folder that transformers loads with AutoModelForCausalLM. It appears whole or not at all.

    `weights` is the whole state dict of a Decoder, gathered. A folder of that name is replaced.
    """
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)  # of a save that was killed
    beside.mkdir(parents=True)
    try:
        tensors = {_their_name(name): weights[name].detach().cpu().contiguous() for name, _ in parameter_shapes(config)}
        save_file(tensors, beside / _WEIGHTS, metadata={"format": "pt"})
        (beside / "config.json").write_text(json.dumps(_their_config(config, export), indent=2) + "\n")
        for file in export.tokenizer_files:
            shutil.copyfile(file, beside / file.name)
        for path in [*beside.iterdir(), beside]:
            _sync(path)
        _replace(folder, beside)
    except SafetensorError as error:
        raise _as_os_error(error, folder / _WEIGHTS) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _as_os_error(error: SafetensorError, path: Path) -> OSError:
    """safetensors tells a full disk in its text alone: "... (os error 28)"; as an OSError it is treated as one."""
    found = re.search(r"os error (\d+)", str(error))
    number = int(found.group(1)) if found else errno.EIO
    return OSError(number, f"cannot write: {os.strerror(number) if found else error}", str(path))


def _replace(folder: Path, beside: Path) -> None:
    """Put `beside` in the place of `folder`. A directory cannot be renamed onto a full one."""
    aside = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    beside.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _their_config(config: ModelConfig, export: Export) -> dict[str, Any]:
    """config.json. The rotary base is written in both spellings, for transformers 4 and 5."""
    qwen3 = config.qk_norm
    return {
        "architectures": ["Qwen3ForCausalLM" if qwen3 else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen3 else "llama",
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_size,
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


def _their_name(name: str) -> str:
    """The Hugging Face name of a Decoder's parameter."""
    if not name.startswith("blocks."):
        return {
            "embedding.weight": "model.embed_tokens.weight",
            "norm.weight": "model.norm.weight",
            "head.weight": "lm_head.weight",
        }[name]
    _, layer, part = name.split(".", 2)
    theirs = {
        "attention_norm.weight": "input_layernorm.weight",
        "mlp_norm.weight": "post_attention_layernorm.weight",
        "attention.query.weight": "self_attn.q_proj.weight",
        "attention.key.weight": "self_attn.k_proj.weight",
        "attention.value.weight": "self_attn.v_proj.weight",
        "attention.output.weight": "self_attn.o_proj.weight",
        "attention.query_norm.weight": "self_attn.q_norm.weight",
        "attention.key_norm.weight": "self_attn.k_norm.weight",
        "mlp.gate.weight": "mlp.gate_proj.weight",
        "mlp.up.weight": "mlp.up_proj.weight",
        "mlp.down.weight": "mlp.down_proj.weight",
    }[part]
    return f"model.layers.{layer}.{theirs}"


def _read_json(path: Path, why: str) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _failed(
            f"cannot be read: {error.strerror}", path, why, "set model.path to a Hugging Face model folder"
        ) from error
    except ValueError as error:
        raise _failed(f"not JSON: {error}", path, why, "download the folder again") from error
    if not isinstance(raw, dict):
        raise _failed("not a JSON object", path, why, "download the folder again")
    return raw


def _count(names: set[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"


def _unreadable(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        return _failed(
            "is missing",
            path,
            "the weights are read from safetensors files only",
            'download the folder again, or set model.init = "random" to take only its architecture',
        )
    return _failed(f"cannot be read: {error}", path, "the file is damaged or cut off", "download the folder again")


def _refused(path: Path, what: str, why: str) -> UserError:
    return _failed(what, path, why, "set model.path to a plain Llama or Qwen3 folder")


def _failed(what: str, path: Path, why: str, fix: str) -> UserError:
    return UserError(what=what, where=str(path), why=why, fix=fix, exit_code=ExitCode.RUN_FAILED)
