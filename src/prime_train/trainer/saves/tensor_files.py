"""Writes tensors into safetensors files of a bounded size, piece by piece. Keeps no tensor in memory.

The shapes decide the layout of every file before the first byte is written, so pieces are only appended.
Source of the format: huggingface.co/docs/safetensors, "Format" (safetensors 0.8).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

_HEADER_ALIGNMENT = 8
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class FileTensor(NamedTuple):
    """A tensor of a file, by name."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def plan_files(tensors: Sequence[FileTensor], largest_bytes: int) -> list[list[FileTensor]]:
    """The tensors of each file, in order: as many as fit. A tensor that is larger has a file of its own."""
    files: list[list[FileTensor]] = []
    free_bytes = 0
    for tensor in tensors:
        if not files or tensor.size_bytes > free_bytes:
            files.append([])
            free_bytes = largest_bytes
        files[-1].append(tensor)
        free_bytes -= tensor.size_bytes
    return files


def write_files(folder: Path, stem: str, files: Sequence[Sequence[FileTensor]], pieces: Iterator[Tensor]) -> None:
    """Write `stem`.safetensors, or several numbered files and their index, as transformers names them. OSError.

    `pieces` are CPU tensors with the numbers of all tensors in order; none of them crosses the end of a tensor.
    """
    names = [name_file(stem, number, len(files)) for number in range(len(files))]
    for name, tensors in zip(names, files, strict=True):
        _write_file(folder / name, tensors, pieces)
    if next(pieces, None) is not None:  # also lets a gathering generator end on every rank
        raise ValueError("more numbers than the shapes have")
    if len(files) > 1:
        weight_map = {tensor.name: name for name, tensors in zip(names, files, strict=True) for tensor in tensors}
        total_bytes = sum(tensor.size_bytes for tensors in files for tensor in tensors)
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def name_file(stem: str, number: int, count: int) -> str:
    return f"{stem}.safetensors" if count == 1 else f"{stem}-{number + 1:05d}-of-{count:05d}.safetensors"


def _write_file(path: Path, tensors: Sequence[FileTensor], pieces: Iterator[Tensor]) -> None:
    try:
        with open(path, "xb") as file:
            file.write(_header(tensors))
            left_bytes = sum(tensor.size_bytes for tensor in tensors)
            while left_bytes:
                piece = next(pieces)
                file.write(piece.contiguous().reshape(-1).view(torch.uint8).numpy().data)
                left_bytes -= piece.nbytes
            file.flush()
            os.fsync(file.fileno())
    except StopIteration:
        raise ValueError(f"{path.name}: fewer numbers than the shapes have") from None
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    if left_bytes < 0:
        raise ValueError(f"{path.name}: a piece crosses the end of the file")


def _header(tensors: Sequence[FileTensor]) -> bytes:
    """The length of the JSON text as 8 bytes, and the text, padded so that the numbers are aligned."""
    ends = list(accumulate(tensor.size_bytes for tensor in tensors))
    described = {
        tensor.name: {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end - tensor.size_bytes, end],
        }
        for tensor, end in zip(tensors, ends, strict=True)
    }
    text = json.dumps({"__metadata__": {"format": "pt"}} | described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
