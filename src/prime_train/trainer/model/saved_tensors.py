"""Reads single tensors of a complete checkpoint, packed or not. Writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from prime_train.checkpoints import layout
from prime_train.trainer.saves.dcp_reader import PackedReader, Planner
from prime_train.trainer.saves.tensor_files import FileTensor


class SavedTensors:
    """The tensors and texts of a checkpoint by their names: "model.norm.weight". Raises UnlikeError.

    A sharded tensor is read as a whole; only what `load` returned last is in memory.
    """

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
        self._fill(state)
        return state[name]

    def load_text(self, name: str) -> str:
        state = {name: ""}
        self._fill(state)
        return state[name]

    def load_into(self, state: dict[str, Any]) -> None:
        """Fill the tensors of a nested state, each by its name. A rank's part of a sharded tensor is filled alone."""
        self._fill(state)

    def _fill(self, state: dict[str, Any]) -> None:
        try:
            load(state, storage_reader=self._reader, planner=Planner(), no_dist=True)
        except CheckpointException as error:  # a BaseException (torch 2.13), which `except Exception` does not catch
            raise ValueError(f"{self.folder.name} does not load: {error}") from error
