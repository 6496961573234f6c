"""Leaves the trainer's weights in a folder from which vLLM loads them. Sends nothing.

The folder has one file of weights and `marker.json`, written last, with its version, size and SHA-256. So a trainer
that is killed while it writes leaves no marker, or one that does not fit the file, and neither is loaded. The weights
are not synced to the disk, because both sides run on this machine: what ends the machine ends both.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from prime_train.core.rundir import RunDir, write_atomic
from prime_train.trainer.model.decoder import ModelConfig
from prime_train.trainer.model.stored_names import hf_name, list_empty, to_stored

SHARED_MEMORY = Path("/dev/shm")
MARKER = "marker.json"
_WEIGHTS = "weights-{}.safetensors"


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """The content of `marker.json`, and the folder with it."""

    folder: Path
    version: int
    file: str
    size_bytes: int
    sha256: str


class Handover:
    """Writes one version at a time. A folder in shared memory is new and only for this user."""

    def __init__(
        self,
        run_dir: RunDir,
        kind: Literal["auto", "shared-memory", "disk"] = "auto",
        dtype: torch.dtype | None = None,
        shared_memory: Path = SHARED_MEMORY,
        config: ModelConfig | None = None,
    ) -> None:
        """`dtype`: of the matrices in the file; None = that of the weights. `config`: None = a Llama."""
        name = hashlib.sha256(str(run_dir.path).encode()).hexdigest()[:16]
        self._shared, self._disk = shared_memory / f"prime-train-{name}", run_dir.handover
        self._kind = kind
        self._dtype = dtype
        self._config = config
        self.clear()  # what a killed attempt has left

    def write(self, weights: Mapping[str, Tensor], version: int) -> WrittenWeights:
        """Write the weights of a Decoder by their Hugging Face names. Raises OSError if the folder has no room."""
        converted = {name: self._convert(weight) for name, weight in weights.items()}
        if self._config is not None:
            dtype = next(iter(converted.values())).dtype
            empty = {name: torch.empty(shape, dtype=dtype) for name, shape in list_empty(self._config).items()}
            tensors = to_stored(converted, self._config) | empty
        else:
            tensors = _name_as_llama(converted)
        size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        folder = self._make_folder(self._choose_folder(size_bytes))
        path = folder / _WEIGHTS.format(version)
        save_file(tensors, path, metadata={"format": "pt"})
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        written = WrittenWeights(folder, version, path.name, path.stat().st_size, digest)
        marker = asdict(written) | {"folder": str(folder)}
        write_atomic(folder / MARKER, json.dumps(marker))
        return written

    def _make_folder(self, chosen: Path) -> Path:
        """A folder that is made here, so no other user can have made it.

        Another user can take the name in shared memory first; the weights then go through the disk.
        """
        for folder in dict.fromkeys((chosen, self._disk) if self._kind == "auto" else (chosen,)):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700, parents=True)
                return folder
        raise FileExistsError(errno.EEXIST, "another user has a folder of this name", str(chosen))

    def clear(self) -> None:
        """Delete what was written."""
        for folder in (self._shared, self._disk):
            shutil.rmtree(folder, ignore_errors=True)

    def _convert(self, weight: Tensor) -> Tensor:
        dtype = self._dtype if self._dtype is not None and weight.ndim > 1 else weight.dtype
        return weight.detach().to("cpu", dtype).contiguous()

    def _choose_folder(self, size_bytes: int) -> Path:
        if self._kind == "disk":
            return self._disk
        if self._kind == "shared-memory":
            return self._shared
        return self._shared if _free_bytes(self._shared.parent) >= 2 * size_bytes else self._disk


def _name_as_llama(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {hf_name(name): weight for name, weight in weights.items()}


def _free_bytes(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0  # no shared memory
    return found.f_bavail * found.f_frsize
