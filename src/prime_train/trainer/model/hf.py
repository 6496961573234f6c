"""Reads and writes Hugging Face folders. Never imports transformers, never downloads.

`spec/hf_config.py` judges and writes config.json, `stored_names.py` has the names of the tensors of each family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.whole_folder import write_folder
from prime_train.spec.hf_config import describe_decoder, read_architecture
from prime_train.trainer.model import stored_names
from prime_train.trainer.model.decoder import ADAPTERS, VOCAB_ROWS, Decoder, ModelConfig, parameter_shapes
from prime_train.trainer.model.shards import copy_rows, whole_to_fill
from prime_train.trainer.model.stored_names import StoredTensor, list_stored, to_stored
from prime_train.trainer.model.stored_names import hf_name as hf_name
from prime_train.trainer.saves.tensor_files import FileTensor, plan_files, write_files

STEM = "model"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
GENERATION_CONFIG = "generation_config.json"
_PIECE_BYTES = 64 * 2**20


def load_weights(model: Decoder, folder: Path) -> None:
    """Copy the folder's weights into `model`, tensor by tensor, in its dtype; of a sharded model into its own rows.

    UserError with the name of a tensor that is missing, unexpected or of another shape. Padded rows become 0.
    """
    config, files = model.config, _tensor_files(folder)
    spelled = stored_names.spell_as(config, files)  # full name -> name in the file
    weights = {name: weight for name, weight in model.state_dict().items() if not name.endswith(ADAPTERS)}
    wanted = {stored.name for name in weights for stored in list_stored(name, config)}
    unexpected = {name for name in spelled if not stored_names.is_redundant(name, config)} - wanted
    if missing := wanted - spelled.keys():
        what = f"{_count(missing)} missing, first {min(missing)}"
        fix = "download the folder again, or correct its config.json"
        raise folder_error(what, folder, "the model of config.json has them", fix)
    if unexpected:
        what = f"{_count(unexpected)} without a place, first {min(unexpected)}"
        why = "without them the model would compute something else"
        raise folder_error(what, folder, why, "use a folder that its family's own code has written")
    with ExitStack() as opened:
        readers = {path: opened.enter_context(_open(path)) for path in sorted(set(files.values()))}
        for name, weight in weights.items():
            whole = whole_to_fill(weight)
            used = whole[: config.vocab_size] if name in VOCAB_ROWS else whole
            if len(used) < len(whole):
                whole.zero_()
            for stored in list_stored(name, config):
                in_file = spelled[stored.name]
                _copy_tensor(readers[files[in_file]], files[in_file], in_file, stored, stored.take(used))
            copy_rows(weight, whole)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


@torch.no_grad()
def _copy_tensor(reader: safe_open, path: Path, name: str, stored: StoredTensor, weight: Tensor) -> None:
    """Copy one tensor of a file, or a part of it, into the part of a weight that it holds."""
    try:
        tensor = reader.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error
    part = stored.cut(tensor)
    if part.shape != weight.shape or not tensor.is_floating_point():
        what = f"{name} is {tensor.dtype} {list(tensor.shape)}, expected floats {_expected(stored, weight)}"
        fix = "correct config.json, or use the folder that belongs to it"
        raise folder_error(what, path, "the weights do not fit config.json", fix)
    weight.copy_(part)


def _expected(stored: StoredTensor, weight: Tensor) -> list[int]:
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


Rows = Callable[[str, int, int], Tensor | None]  # rows `start` to `stop` of a parameter, on the CPU; None = not here


def save_rows(folder: Path, config: ModelConfig, rows: Rows, export: Export) -> None:
    """Write a folder that transformers loads, complete or not at all, or replace one; `rows` reads in portions."""
    with write_folder(folder, replaces=True) as beside:
        write_content(beside, config, rows, export)


def write_content(folder: Path, config: ModelConfig, rows: Rows, export: Export) -> None:
    """Write the files of the folder, which exists and is empty. Raises OSError."""
    files = plan_files(list_tensors(config, export.dtype), export.max_shard_bytes)
    write_files(folder, STEM, files, read_pieces(config, rows, export.dtype))
    (folder / "config.json").write_text(json.dumps(to_hf_config(config, export), indent=2) + "\n")
    for file in (*export.tokenizer_files, *filter(None, [export.generation_config])):
        (folder / file.name).write_bytes(outside.read_bytes(file, outside.MODEL_BYTES))


def list_tensors(config: ModelConfig, dtype: torch.dtype) -> list[FileTensor]:
    """Every tensor of the folder, in the order of `read_pieces`; those without a number come last."""
    converted = [tensor for group in _list_groups(config) for tensor in to_stored(group, config).items()]
    shapes = {name: tuple(tensor.shape) for name, tensor in converted} | stored_names.list_empty(config)
    return [FileTensor(name, dtype, shape) for name, shape in shapes.items()]


def read_pieces(config: ModelConfig, rows: Rows, dtype: torch.dtype) -> Iterator[Tensor]:
    """The numbers of the folder's tensors in order, in portions. Every rank iterates; only rank 0 gets them."""
    for group in _list_groups(config):
        first, like = next(iter(group.items()))
        converted = [*to_stored(group, config).values()]
        if len(converted) == 1 and converted[0] is like:
            step = max(1, _PIECE_BYTES // max(1, like[0].nbytes))
            for start in range(0, len(like), step):
                if (piece := rows(first, start, min(start + step, len(like)))) is not None:
                    yield piece.to(dtype)
            continue
        whole = {name: rows(name, 0, len(weight)) for name, weight in group.items()}
        read = {name: weight for name, weight in whole.items() if weight is not None}
        for tensor in to_stored(read, config).values() if read else ():
            yield tensor.to(dtype)


def _list_groups(config: ModelConfig) -> list[dict[str, Tensor]]:
    """Weights that share tensors of the folder, by name, on the meta device."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, shape in parameter_shapes(config).items():
        groups.setdefault(list_stored(name, config)[0].name, {})[name] = torch.empty(shape, device="meta")
    return [*groups.values()]


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

    ctx_tokens: int  # the longest context that the model was made for
    stop_token: int | None = None
    tokenizer_files: tuple[Path, ...] = ()
    generation_config: Path | None = None
    dtype: torch.dtype = torch.float32
    max_shard_bytes: int = 5 * 10**9  # of one file


def read_config(folder: Path) -> ModelConfig:
    """The architecture of a Hugging Face folder. UserError where the Decoder does not support it."""
    path = folder / "config.json"
    return read_architecture(read_json(path, "a Hugging Face model folder has a config.json"), str(path))


def read_ctx_tokens(folder: Path) -> int:
    """The longest context that the model of a folder was made for; 0 where config.json has none."""
    found = read_json(folder / "config.json", "it has the context length").get("max_position_embeddings")
    return found if type(found) is int else 0


def to_hf_config(config: ModelConfig, export: Export) -> dict[str, Any]:
    """The content of config.json."""
    dtype = str(export.dtype).removeprefix("torch.")
    return describe_decoder(config, ctx_tokens=export.ctx_tokens, stop_token=export.stop_token, dtype=dtype)


def read_json(path: Path, why: str) -> dict[str, Any]:
    """The JSON object in a file of the folder. UserError with `why` where it cannot be read."""
    try:
        raw = outside.read_json(path, outside.MODEL_BYTES)
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
