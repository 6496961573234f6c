"""Reads plain values, as the number of a step, out of a file of torch.save. Runs nothing of it, loads no tensor.

Some trainers write one file whose name has no number: `last.ckpt`, `ckpt.pt`. Its values are a pickle within a zip.
Source: torch/serialization.py, torch 2.13.
"""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from prime_train.checkpoints.dcp import BROKEN, StandIn
from prime_train.checkpoints.file_ends import FileVersion, find_fault
from prime_train.core import outside

_PICKLE_BYTES = 16 * 2**20  # 50,000 tensors have 10 MB
_MOST_VALUES = 10_000  # of the tables that are searched


class _Filled(StandIn):
    """A container of any class. What is put into it is dropped."""

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...

    def add(self, value: Any) -> None: ...


# In Python, because the C unpickler reserves memory for any number that a pickle names.
class _Plain(pickle._Unpickler):
    """Imports and calls nothing that a pickle names; tensors are stand-ins without their storage."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return type(name, (_Filled,), {"qualified": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> None:
        del pid


def read_number(path: Path, key: str, version: FileVersion) -> int | None:
    """The count that the saved table has under `key`; None where it has none, or the file is not whole."""
    return outside.to_count(next(iter(find_values(path, key, version)), None))


@lru_cache(maxsize=256)
def find_values(path: Path, key: str, version: FileVersion) -> tuple[Any, ...]:
    """The numbers and texts under `key` in the saved table and the tables in it, the outermost first."""
    try:
        if find_fault(path, "zip", version):
            return ()
        table = _read_table(path)
    except (OSError, zipfile.BadZipFile, *BROKEN):
        return ()
    return tuple(value for value in _search(table, key) if isinstance(value, int | str))


def _read_table(path: Path) -> Any:
    with outside.open_regular(path, path.parent) as file, zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        name = next(name for name in names if name.endswith("data.pkl"))
        if archive.getinfo(name).file_size > _PICKLE_BYTES:
            raise ValueError("its pickle is larger than that of any table")
        with archive.open(name) as stream:
            return _Plain(io.BytesIO(stream.read(_PICKLE_BYTES))).load()


def _search(table: Any, key: str) -> Iterator[Any]:
    waiting = collections.deque([table])
    for _ in range(_MOST_VALUES):
        if not waiting:
            return
        found = waiting.popleft()
        if isinstance(found, Mapping):
            if key in found:
                yield found[key]
            waiting.extend(value for value in found.values() if isinstance(value, Mapping))
