"""Reads `.metadata` of torch.distributed.checkpoint: the file and offset of each tensor. Imports no torch.

`.metadata` is a pickle. Every class that it names is replaced by an inert stand-in, so none of its code runs.
Source: torch/distributed/checkpoint/{metadata,filesystem}.py, torch 2.13.
"""

from __future__ import annotations

import io
import pickle
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core import outside

METADATA = ".metadata"
METADATA_BYTES = 2**29  # a model of 1 T parameters on 4,096 ranks has a tenth of this
BROKEN = (  # what the unpickler and the code below raise for a file that torch did not write
    *(pickle.UnpicklingError, AttributeError, LookupError, TypeError, ValueError, EOFError, ImportError),
    *(OverflowError, MemoryError, RecursionError),  # a pickle can name any size
)


class UnlikeError(Exception):
    """A file does not have the layout that torch writes."""


class StoredPiece(NamedTuple):
    """One stored piece of a tensor or of another value. `offset` and `length` in bytes; `index` as torch has it."""

    name: str
    file: str
    offset: int
    length: int
    index: Any


class StandIn:
    """An object of any class as its pickle describes it: the constructor's arguments, and its state."""

    qualified = ""  # of a subclass: module and name in the pickle

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Inert(pickle.Unpickler):
    """Imports and calls nothing that a pickle names."""

    def find_class(self, module: str, name: str) -> type[StandIn]:
        return type(name, (StandIn,), {"qualified": f"{module}.{name}"})


_DCP = "torch.distributed.checkpoint"
_KNOWN = frozenset(
    {f"{_DCP}.filesystem._StorageInfo", "torch.serialization._get_layout", "torch.Size"}
    | {f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath")}
    | {f"{_DCP}.metadata.{kind}StorageMetadata" for kind in ("Tensor", "Bytes", "Chunk")}
    | {f"{_DCP}.metadata.{name}" for name in ("Metadata", "TensorProperties", "MetadataIndex", "StorageMeta")}
    | {f"{_DCP}.metadata._MEM_FORMAT_ENCODING"}
)
_ENUM = f"{_DCP}.metadata._MEM_FORMAT_ENCODING"
_DTYPE = re.compile(r"torch\.(bool|(bfloat|u?int|float|complex)\d+(_e\d+m\d+\w*)?)")


class _Member(StandIn):
    """A member of an enum, as Python 3.11.0 to 3.11.3 pickles it: getattr(class, name). Source: Lib/enum.py."""

    qualified = "builtins.getattr"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        match arguments:
            case (type() as found, str()) if issubclass(found, StandIn) and found.qualified == _ENUM:
                return
        raise pickle.UnpicklingError(f"it names {self.qualified!r}, for another thing than a member of {_ENUM}")


class _Restricted(_Inert):
    """Refuses every name that torch.distributed.checkpoint does not write itself."""

    def find_class(self, module: str, name: str) -> type[StandIn]:
        found = super().find_class(module, name)
        if found.qualified == _Member.qualified:
            return _Member
        # A list of what is known, because no list of what is dangerous is ever complete.
        if found.qualified not in _KNOWN and not _DTYPE.fullmatch(found.qualified):
            raise pickle.UnpicklingError(f"it names {found.qualified[:80]!r}, which no checkpoint of tensors needs")
        return found


def parse(metadata: bytes) -> StandIn:
    """The root of `.metadata` as stand-ins. UnlikeError where it names anything but the classes of DCP itself."""
    try:
        found = _Restricted(io.BytesIO(metadata)).load()
    except BROKEN as error:
        raise UnlikeError(f"{METADATA} is not as torch writes it: {error!r}") from error
    if not isinstance(found, StandIn):
        raise UnlikeError(f"{METADATA} is not as torch writes it: it holds no Metadata")
    return found


def entries(metadata: bytes) -> tuple[list[StoredPiece], dict[str, Any]]:
    """All stored pieces, and the shapes by tensor name. Raises UnlikeError where torch did not write `metadata`."""
    try:
        found = _Inert(io.BytesIO(metadata)).load().state
        return [_entry(*stored) for stored in found["storage_data"].items()], dict(found["state_dict_metadata"])
    except BROKEN as error:
        raise UnlikeError(f"{METADATA} is not as torch writes it: {error!r}") from error


def _entry(index: Any, info: Any) -> StoredPiece:
    name, place = str(index.state["fqn"]), info.state
    file = str(place["relative_path"])
    # The name is opened below the checkpoint, so it must not lead out of it.
    if fault := outside.name_fault(file):
        raise ValueError(f"it names the file {file[:100]!r}: {fault}")
    return StoredPiece(name, file, int(place["offset"]), int(place["length"]), index)


def read_metadata(folder: Path) -> bytes:
    """The bytes of `.metadata`. Raises OSError; OutsideError where it is not a regular file of a bounded size."""
    return outside.read_bytes(folder / METADATA, METADATA_BYTES, folder)


def missing(folder: Path) -> str:
    """The first file that `.metadata` names and that is missing or too short; empty where none is. Raises OSError."""
    # Inode, time and size name the version, so an unchanged file is parsed once.
    status = outside.stat_regular(folder / METADATA, folder)
    needed = _needed(folder, (status.st_ino, status.st_mtime_ns, status.st_size))
    if isinstance(needed, str):
        return needed
    for file, least_bytes in needed:
        try:
            size_bytes = outside.stat_regular(folder / file, folder).st_size
        except FileNotFoundError:
            return f"{file} is missing"
        except outside.OutsideError as error:
            return f"{file} is unreadable: {error}"
        # Not equality: `.metadata` has the ends of the tensors, and not the size of the file.
        if size_bytes < least_bytes:
            return f"{file} has {size_bytes:,} of at least {least_bytes:,} bytes"
    return ""


@lru_cache(maxsize=64)  # a run is looked at every few seconds, and the file of a large model takes long to parse
def _needed(folder: Path, version: tuple[int, ...]) -> tuple[tuple[str, int], ...] | str:
    """Bytes that each file has at least; what is wrong with `.metadata` where that cannot be read out of it."""
    del version  # of the file: a key of the cache
    try:
        stored, _ = entries(read_metadata(folder))
    except UnlikeError as error:
        return str(error)
    needed: dict[str, int] = {}
    for entry in stored:
        needed[entry.file] = max(needed.get(entry.file, 0), entry.offset + entry.length)
    return tuple(sorted(needed.items()))
