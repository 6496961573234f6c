"""Reads and writes Hugging Face folders. Never imports transformers, never downloads.

`spec/hf_config.py` judges and writes config.json, `stored_names.py` has the names of the tensors of each family.
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

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MODEL_BYTES
from prime_train.core.rundir import sync
from prime_train.spec.hf_config import describe_decoder, read_architecture
from prime_train.trainer.model import Decoder, ModelConfig, parameter_shapes
from prime_train.trainer.stored_names import Stored, is_redundant, list_stored, spell_as, to_stored
from prime_train.trainer.stored_names import hf_name as hf_name

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def load_weights(model: Decoder, folder: Path) -> None:
    """Copy the folder's weights into `model`, tensor by tensor, in the model's own dtype.

    UserError with the tensor's name where one is missing, unexpected or of another shape. Call it before the model
    is sharded.
    """
    config, files = model.config, _tensor_files(folder)
    spelled = spell_as(config, files)  # full name -> name in the file
    wanted: dict[str, list[tuple[Stored, Tensor]]] = {}
    for name, weight in model.state_dict().items():
        for stored in list_stored(name, config):
            wanted.setdefault(stored.name, []).append((stored, stored.take(weight)))
    unexpected = {name for name in spelled if not is_redundant(name, config)} - wanted.keys()
    if missing := wanted.keys() - spelled.keys():
        what = f"{_count(missing)} missing, first {min(missing)}"
        fix = "download the folder again, or correct its config.json"
        raise folder_error(what, folder, "the model of config.json has them", fix)
    if unexpected:
        what = f"{_count(unexpected)} without a place, first {min(unexpected)}"
        why = "without them the model would compute something else"
        raise folder_error(what, folder, why, "use a folder that its family's own code has written")
    in_file = {spelled[name]: parts for name, parts in wanted.items()}
    for path in sorted(set(files.values())):
        _copy_tensors(path, {name: parts for name, parts in in_file.items() if files[name] == path})


@torch.no_grad()
def _copy_tensors(path: Path, wanted: Mapping[str, list[tuple[Stored, Tensor]]]) -> None:
    """Copy the tensors of a file into the weights that they hold, or parts of these."""
    try:
        with safe_open(path, framework="pt") as file:
            for name, parts in wanted.items():
                tensor = file.get_tensor(name)
                for stored, weight in parts:
                    part = stored.cut(tensor)
                    if part.shape != weight.shape or not tensor.is_floating_point():
                        found, expected = f"{tensor.dtype} {list(tensor.shape)}", _expected(stored, weight)
                        what = f"{name} is {found}, expected floats {expected}"
                        fix = "correct config.json, or use the folder that belongs to it"
                        raise folder_error(what, path, "the weights do not fit config.json", fix)
                    weight.copy_(part)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _expected(stored: Stored, weight: Tensor) -> list[int]:
    """The shape of a tensor in the file."""
    first, *rest = weight.shape
    shape = [first * (1 if stored.third is None else 3), *rest]
    return shape[::-1] if stored.transposed else shape


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
        gathered = {name: weights[name].detach().cpu() for name in parameter_shapes(config)}
        tensors = to_stored(gathered, config)
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


def _count(names: set[str]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _unreadable(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        fix = 'download the folder again, or set model.init = "random" to use only its architecture'
        return folder_error("is missing", path, "the weights are read from safetensors files only", fix)
    return folder_error(f"cannot be read: {error}", path, "the file is damaged or truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The content of a Hugging Face folder besides the weights."""

    ctx_tokens: int
    stop_token: int | None = None
    tokenizer_files: tuple[Path, ...] = ()


def read_config(folder: Path) -> ModelConfig:
    """The architecture of a Hugging Face folder. UserError where the Decoder does not support it."""
    path = folder / "config.json"
    return read_architecture(read_json(path, "a Hugging Face model folder has a config.json"), str(path))


def to_hf_config(config: ModelConfig, export: Export) -> dict[str, Any]:
    """The content of config.json."""
    return describe_decoder(config, ctx_tokens=export.ctx_tokens, stop_token=export.stop_token)


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


def folder_error(what: str, path: Path, why: str, fix: str = "download the folder again") -> UserError:
    """The error of a folder that cannot be used."""
    return UserError(what=what, where=str(path), why=why, fix=fix)
