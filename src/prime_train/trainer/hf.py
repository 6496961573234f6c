"""Reads and writes Hugging Face folders of Llama and Qwen3 models. Never imports transformers, never downloads.

A feature that the Decoder does not compute (biases, scaled rotary positions, sliding windows, quantised weights) is an
error that names it, because loading the folder anyway would train another model.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prime_train.core.errors import UserError
from prime_train.core.rundir import sync
from prime_train.trainer.hf_config import Export, folder_error, read_json, to_hf_config
from prime_train.trainer.model import Decoder, ModelConfig, parameter_shapes

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

    UserError with the tensor's name where one is missing, unexpected or of another shape. Call it before the model
    is sharded.
    """
    files = _tensor_files(folder)
    parameters = {_hf_name(name): weight for name, weight in model.named_parameters()}
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
        tensors = {_hf_name(name): weights[name].detach().cpu().contiguous() for name in parameter_shapes(config)}
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


def _hf_name(name: str) -> str:
    """The Hugging Face name of a Decoder's parameter: "head.weight" is "lm_head.weight"."""
    return ".".join(_HF_PARTS.get(part, part) for part in name.split("."))


def _count(names: set[str]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _unreadable(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        fix = 'download the folder again, or set model.init = "random" to use only its architecture'
        return folder_error("is missing", path, "the weights are read from safetensors files only", fix)
    return folder_error(f"cannot be read: {error}", path, "the file is damaged or truncated")
