"""Reads and writes Hugging Face folders of Llama and Qwen3 models. Never imports transformers, never downloads.

A feature that the Decoder does not compute (biases, scaled rotary positions, sliding windows, quantised weights) is an
error that names it, because loading the folder anyway would train another model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MODEL_BYTES
from prime_train.core.whole_folder import write_folder
from prime_train.spec.decoder_size import Architecture
from prime_train.spec.hf_config import SIZE_KEYS, describe_decoder
from prime_train.trainer.model import Decoder, ModelConfig, parameter_shapes
from prime_train.trainer.tensor_files import FileTensor, plan_files, write_files

STEM = "model"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
GENERATION_CONFIG = "generation_config.json"
_PIECE_BYTES = 64 * 2**20
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

    UserError with the tensor's name where one is missing, unexpected or of another shape. Call it before the model
    is sharded.
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
    for path in sorted(set(files.values())):
        _copy_tensors(path, {name: weight for name, weight in parameters.items() if files[name] == path})


@torch.no_grad()
def _copy_tensors(path: Path, parameters: Mapping[str, Tensor]) -> None:
    try:
        with safe_open(path, framework="pt") as file:
            for name, weight in parameters.items():
                stored = file.get_tensor(name)
                if stored.shape != weight.shape or not stored.is_floating_point():
                    what = f"{name} is {stored.dtype} {list(stored.shape)}, expected floats {list(weight.shape)}"
                    fix = "correct config.json, or use the folder that belongs to it"
                    raise folder_error(what, path, "the weights do not fit config.json", fix)
                weight.copy_(stored)
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
    save_rows(folder, config, lambda name, start, stop: weights[name].detach()[start:stop].cpu(), export)


Rows = Callable[[str, int, int], Tensor | None]  # rows `start` to `stop` of a parameter, on the CPU; None = not here


def save_rows(folder: Path, config: ModelConfig, rows: Rows, export: Export) -> None:
    """`save` with weights that `rows` reads in portions, so the model need not be in memory as a whole."""
    with write_folder(folder, replaces=True) as beside:
        write_content(beside, config, rows, export)


def write_content(folder: Path, config: ModelConfig, rows: Rows, export: Export) -> None:
    """Write the files of the folder, which exists and is empty. Raises OSError."""
    files = plan_files(list_tensors(config, export.dtype), export.max_shard_bytes)
    write_files(folder, STEM, files, read_pieces(config, rows, export.dtype))
    (folder / "config.json").write_text(json.dumps(to_hf_config(config, export), indent=2) + "\n")
    for file in (*export.tokenizer_files, *filter(None, [export.generation_config])):
        (folder / file.name).write_bytes(outside.read_bytes(file, MODEL_BYTES))


def list_tensors(config: ModelConfig, dtype: torch.dtype) -> list[FileTensor]:
    """Every tensor of the folder, in the order of `read_pieces`."""
    return [
        FileTensor(name, dtype, tuple(tensor.shape))
        for group in _list_groups(config)
        for name, tensor in _convert(group).items()
    ]


def read_pieces(config: ModelConfig, rows: Rows, dtype: torch.dtype) -> Iterator[Tensor]:
    """The numbers of the folder's tensors in order. Every rank of a sharded model iterates; only rank 0 gets pieces.

    A parameter that the folder has unchanged is read in portions. Others are in memory as a whole, one group at a time.
    """
    for group in _list_groups(config):
        first, like = next(iter(group.items()))
        converted = [*_convert(group).values()]
        if len(converted) == 1 and converted[0] is like:
            step = max(1, _PIECE_BYTES // max(1, like[0].nbytes))
            for start in range(0, len(like), step):
                if (piece := rows(first, start, min(start + step, len(like)))) is not None:
                    yield piece.to(dtype)
            continue
        whole = {name: rows(name, 0, len(weight)) for name, weight in group.items()}
        read = {name: weight for name, weight in whole.items() if weight is not None}
        for tensor in _convert(read).values() if read else ():
            yield tensor.to(dtype)


def _list_groups(config: ModelConfig) -> list[dict[str, Tensor]]:
    """Parameters that share tensors of the folder, by name, on the meta device."""
    return [{name: torch.empty(shape, device="meta")} for name, shape in parameter_shapes(config).items()]


def _convert(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the folder that a group becomes; a tensor that is not changed is the same object."""
    return {hf_name(name): weight for name, weight in weights.items()}


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

    ctx_tokens: int  # the longest context that the model was made for
    stop_token: int | None = None
    tokenizer_files: tuple[Path, ...] = ()
    generation_config: Path | None = None
    dtype: torch.dtype = torch.float32
    max_shard_bytes: int = 5 * 10**9  # of one file


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
    )
    if config.heads % config.kv_heads:
        what = f"num_key_value_heads = {config.kv_heads} does not divide num_attention_heads = {config.heads}"
        raise folder_error(what, path, "each key and value head serves the same number of query heads", _CORRECT)
    if config.head_dim % 2:
        what = f"head_dim = {config.head_dim} is odd"
        raise folder_error(what, path, "rotary positions turn the dimensions of a head in pairs", _CORRECT)
    return config


def read_ctx_tokens(folder: Path) -> int:
    """The longest context that the model of a folder was made for; 0 where config.json has none."""
    found = read_json(folder / "config.json", "it has the context length").get("max_position_embeddings")
    return found if type(found) is int else 0


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
        dtype=str(export.dtype).removeprefix("torch."),
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
