"""Reads the small files of a model in a local folder, and the headers of its weights. Downloads nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prime_train.core import outside
from prime_train.core.outside import MODEL_BYTES
from prime_train.models.read import safetensors_header
from prime_train.models.read.model_files import ModelFiles, ReadFault, Unread, Weights, front_matter
from prime_train.models.read.safetensors_header import HeaderError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_CARD_BYTES = 20_000
_MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt", "README.md")
_LFS_START = b"version https://git-lfs"
_PIECES, _PIECE_BYTES = 64, 4096  # of the head and the embedding, to compare them


def read_folder(name: str, origin: str, folder: Path, revision: str = "") -> ModelFiles:
    """A model in a local folder or in the cache. Raises OSError if the folder cannot be listed."""
    paths = sorted(folder.iterdir())
    sizes = {path.name: path.stat().st_size for path in paths if path.is_file()}  # follows the links of the cache
    unread = (
        *(Unread(path.name, ReadFault.NOT_REGULAR, fault) for path in paths if (fault := _kind_fault(path))),
        *(
            Unread(file, ReadFault.UNREADABLE, "permission denied")
            for file in sizes
            if not os.access(folder / file, os.R_OK)
        ),
    )
    card = folder / "README.md"
    text = read_card(card) if card.name in sizes and os.access(card, os.R_OK) else ""
    return ModelFiles(name, origin, folder, revision, sizes, unread, _weights(folder, sizes), front_matter(text))


def _kind_fault(path: Path) -> str:
    """Why a file of a model cannot be opened, because it is no regular file; "" for any other file and for folders."""
    if path.is_file() or path.is_dir() or not path.name.endswith(_MODEL_SUFFIXES):
        return ""
    try:
        os.close(outside.open_descriptor(path))
    except FileNotFoundError:
        return f"it is a link to {str(path.readlink())[:200]}, which does not exist"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def read_card(path: Path) -> str:
    """The beginning of a model card. Raises OSError."""
    with outside.open_regular(path) as file:
        return file.read(_CARD_BYTES).decode("utf-8", "replace")


def _weights(folder: Path, sizes: dict[str, int]) -> Weights | None:
    faults: list[str] = []
    headers: dict[str, safetensors_header.TensorHeader] = {}
    index = _read_index(folder, faults) if INDEX in sizes else None
    for file in _weight_files(index, sizes) if not faults else ():
        if file not in sizes:
            faults.append(f"{file} is missing: the index names it")
            continue
        try:
            header = _read_header(folder / file)
        except (HeaderError, OSError) as error:
            faults.append(f"{file}: {error}")
            continue
        if header.file_bytes != sizes[file]:
            faults.append(f"{file} has {sizes[file]} bytes, and its header describes {header.file_bytes}")
        headers[file] = header
    if index is not None:
        faults += safetensors_header.absent_tensors(index, headers)
    differs = _head_differs(folder, headers) if not faults else None
    return safetensors_header.summarise(headers.values(), faults, differs) if headers or faults else None


def _read_index(folder: Path, faults: list[str]) -> Mapping[str, Any] | None:
    try:
        index = outside.read_json(folder / INDEX, MODEL_BYTES)
        safetensors_header.shards(index)
    except (ValueError, AttributeError, OSError) as error:
        faults.append(f"{INDEX} is not valid: {error}")
        return None
    return index if isinstance(index, dict) else None


def _weight_files(index: Mapping[str, Any] | None, sizes: dict[str, int]) -> Iterator[str]:
    """The weight files: those in the index, else model.safetensors, else every safetensors file."""
    if index is not None:
        yield from safetensors_header.shards(index)
    elif SINGLE in sizes:
        yield SINGLE
    else:
        yield from (file for file in sizes if file.endswith(".safetensors"))


def _read_header(path: Path) -> safetensors_header.TensorHeader:
    with outside.open_regular(path) as file:
        start = file.read(safetensors_header.LENGTH_BYTES)
        if start == _LFS_START[: len(start)] and start:
            raise HeaderError("it is a pointer of Git LFS, not the file itself: git lfs pull")
        size = safetensors_header.length(start)
        content = file.read(size)
    if len(content) < size:
        raise HeaderError(f"the file ends within its header, after {len(content)} of {size} bytes")
    return safetensors_header.parse(content)


def _head_differs(folder: Path, headers: Mapping[str, safetensors_header.TensorHeader]) -> bool | None:
    """Whether the head has other numbers than the embedding, by samples of both; None unless both are stored alike.

    The only place that reads weights: at most 256 KiB of each, because headers cannot show whether tied weights agree.
    """
    found: dict[bool, tuple[Path, int, tuple[str, tuple[int, ...]]]] = {}
    for file, header in headers.items():
        for name, dtype, shape in header.tensors:
            if safetensors_header.is_head(name) or safetensors_header.is_embedding(name):
                found[safetensors_header.is_head(name)] = (folder / file, header.starts[name], (dtype, shape))
    if len(found) < 2 or found[True][2] != found[False][2]:
        return None
    dtype, shape = found[True][2]
    size = math.prod(shape) * safetensors_header.BITS[dtype] // 8
    places = [size * number // _PIECES for number in range(_PIECES)]
    return _samples(found[True], places, size) != _samples(found[False], places, size)


def _samples(tensor: tuple[Path, int, Any], places: list[int], size: int) -> list[bytes]:
    path, start, _ = tensor
    pieces = []
    with outside.open_regular(path) as file:
        for place in places:
            file.seek(start + place)
            pieces.append(file.read(min(_PIECE_BYTES, size - place)))
    return pieces
