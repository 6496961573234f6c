"""Reads a checkpoint of torch.distributed.checkpoint (DCP) into memory, and runs no code that it names.

DCP itself unpickles `.metadata`, and every value that is not a tensor, with pickle.load. Here `.metadata` becomes
stand-ins first (checkpoints/dcp.py), from which this module makes DCP's values field by field, and other values are
read with weights_only. Source: torch/distributed/checkpoint/{filesystem,default_planner}.py, torch 2.13.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp_values
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from prime_train.checkpoints import dcp, layout
from prime_train.checkpoints.dcp import StandIn, UnlikeError
from prime_train.checkpoints.packing.packed import ManifestEntry
from prime_train.checkpoints.packing.packed_file import PackedFile
from prime_train.trainer.saves.tensor_files import FileTensor

_BUFFER_BYTES = 2**20


class Reader(FileSystemReader):
    """DCP's reader of a folder. UnlikeError where `.metadata` is not DCP's, or names a file that is not in `files`."""

    def __init__(self, folder: Path, files: Collection[str], metadata: bytes | None = None) -> None:
        super().__init__(folder)
        self._metadata = parse(dcp.read_metadata(folder) if metadata is None else metadata, files)

    def read_metadata(self, *_: Any, **_options: Any) -> dcp_values.Metadata:
        return self._metadata


class PackedReader(Reader):
    """`Reader` of a checkpoint that may be packed: it unpacks what is read, and the files stay as they are."""

    def __init__(self, folder: Path, entries: Collection[ManifestEntry]) -> None:
        files = _PackedFiles(folder, {entry.name: entry for entry in entries})
        with files.create_stream(folder / dcp.METADATA, "rb") as stream:
            metadata = stream.read(dcp.METADATA_BYTES)
        super().__init__(folder, {entry.name for entry in entries}, metadata)
        self.fs = files


class _PackedFiles(FileSystem):
    def __init__(self, folder: Path, entries: Mapping[str, ManifestEntry]) -> None:
        self._folder, self._entries = folder, entries

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """The file of an entry, buffered: DCP and torch.load read some bytes at a time."""
        del mode  # always "rb"
        entry = self._entries[Path(path).relative_to(self._folder).as_posix()]
        with io.BufferedReader(PackedFile(self._folder, entry), _BUFFER_BYTES) as stream:
            yield stream


class Planner(DefaultLoadPlanner):
    """DCP's planner, which reads texts with weights_only. The texts are at the top of our states."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name, text = read_item.dest_index.fqn, torch.load(value, weights_only=True)
        if name not in self.original_state_dict or not isinstance(text, str):
            raise UnlikeError(f"{name} is no text, which every value besides tensors is")
        self.original_state_dict[name] = text


def parse(metadata: bytes, files: Collection[str]) -> dcp_values.Metadata:
    """DCP's value of `.metadata`, as far as a load needs it. Raises UnlikeError."""
    try:
        root = dcp.parse(metadata).state
        tensors = {str(name): _stored(value) for name, value in root["state_dict_metadata"].items()}
        places = {_index(index): _place(info, files) for index, info in root["storage_data"].items()}
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UnlikeError(f"{dcp.METADATA} is not as torch writes it: {error!r}") from error
    return dcp_values.Metadata(tensors, storage_data=places, version=None)


def _stored(value: StandIn) -> TensorStorageMetadata | dcp_values.BytesStorageMetadata:
    if value.qualified.endswith(".BytesStorageMetadata"):
        return dcp_values.BytesStorageMetadata()
    chunks = [
        dcp_values.ChunkStorageMetadata(_size(c.state["offsets"]), _size(c.state["sizes"]))
        for c in value.state["chunks"]
    ]
    dtype = getattr(torch, value.state["properties"].state[0].qualified.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype} is no dtype")
    return TensorStorageMetadata(dcp_values.TensorProperties(dtype), _size(value.state["size"]), chunks)


def _size(value: StandIn) -> torch.Size:
    return torch.Size(int(number) for number in value.arguments[0])


def _index(value: StandIn) -> dcp_values.MetadataIndex:
    offset, index = value.state.get("offset"), value.state.get("index")
    return dcp_values.MetadataIndex(
        str(value.state["fqn"]), None if offset is None else _size(offset), None if index is None else int(index)
    )


def _place(value: StandIn, files: Collection[str]) -> _StorageInfo:
    file, offset, length = (value.state[name] for name in ("relative_path", "offset", "length"))
    if file not in files:
        raise ValueError(f"{str(file)[:80]!r} is no file of this checkpoint")
    if value.state.get("transform_descriptors"):
        raise ValueError("its tensors are transformed, which the trainer never does")
    return _StorageInfo(str(file), int(offset), int(length))


class SavedTensors:
    """The tensors and texts of a checkpoint by their names, "model.norm.weight", read one by one. UnlikeError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = PackedReader(folder, layout.entries(folder))
        self._stored: dict[str, Any] = self._reader.read_metadata().state_dict_metadata

    def list_tensors(self, prefix: str) -> list[FileTensor]:
        """The tensors whose names begin with `prefix`, without it, in the order in which they were saved."""
        return [
            FileTensor(name.removeprefix(prefix), stored.properties.dtype, tuple(stored.size))
            for name, stored in self._stored.items()
            if name.startswith(prefix) and isinstance(stored, TensorStorageMetadata)
        ]

    def list_texts(self) -> list[str]:
        return [name for name, stored in self._stored.items() if not isinstance(stored, TensorStorageMetadata)]

    def load(self, name: str) -> Tensor:
        stored: TensorStorageMetadata = self._stored[name]
        state = {name: torch.empty(stored.size, dtype=stored.properties.dtype)}
        self.load_into(state)
        return state[name]

    def load_text(self, name: str) -> str:
        state = {name: ""}
        self.load_into(state)
        return state[name]

    def load_into(self, state: dict[str, Any]) -> None:
        """Fill the tensors of a nested state, each by its name. A rank's part of a sharded tensor is filled alone."""
        try:
            load(state, storage_reader=self._reader, planner=Planner(), no_dist=True)
        except CheckpointException as error:  # a BaseException (torch 2.13), which `except Exception` does not catch
            raise ValueError(f"{self.folder.name} does not load: {error}") from error
