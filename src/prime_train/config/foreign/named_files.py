"""Finds the local files that a training names and that are not on this machine: its model, and its data.

A name that the hub could have is left out: only a path, or a name with the ending of a data file, is one for certain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from prime_train.config.foreign.follow import find_file, find_folder
from prime_train.config.foreign.model_sizes import keys_of_model, named_model
from prime_train.config.foreign.recipe.fields import formats, mapping_of, value_in
from prime_train.config.foreign.values import ForeignPart
from prime_train.toml.document import KeyPath

_INSIDE = "data_files"  # of the data set whose source or path is beside it
_LOADERS = ("json", "csv", "parquet", "text", "arrow")  # of the package datasets
_PATHS = ("/", "./", "../", "~")
_DATA = (".json", ".jsonl", ".parquet", ".csv", ".arrow", ".tsv", ".txt")


def find_missing(parts: Sequence[ForeignPart]) -> dict[str, str]:
    """The models and data that trainings name and that are not there -> the dotted key that names each.

    A name is relative to the working directory, or to the folder of the file. A task of SkyPilot runs elsewhere.
    """
    found: dict[str, str] = {}
    if any(part.format == "skypilot" for part in parts):
        return found
    for part in parts:
        for key, name in () if part.moved else _named(part):
            if _is_file(name) and not _is_there(name, part):
                found.setdefault(name, ".".join(map(str, (*part.at, *key))))
    return found


def find_model_folders(parts: Sequence[ForeignPart]) -> dict[str, str]:
    """The folders of models that are there -> the dotted key that names each."""
    found: dict[str, str] = {}
    for part in parts:
        name = named_model(part)
        folder = None if name is None or part.moved else find_folder(os.path.expanduser(name), part.document.path)  # noqa: PTH111
        if folder is not None and part.format in formats():
            key = next(key for key in keys_of_model(part.format) if value_in(part.values, key) == name)
            found.setdefault(folder, ".".join(map(str, (*part.at, key))))
    return found


def _named(part: ForeignPart) -> Iterator[tuple[KeyPath, str]]:
    if part.format not in formats():
        return
    for pattern in (*keys_of_model(part.format), *mapping_of(part.format).get("data", {}).get("keys", ())):
        for key, value in _values(part.values, tuple(pattern.split("."))):
            if key[-1] == _INSIDE and not _is_loaded(part.values, key[:-1]):
                continue
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str):
                    yield key, name


def _is_loaded(values: Any, key: KeyPath) -> bool:
    """Whether the files of a data set are read as such. Those of a repository on the hub are in the repository."""
    for name in key:
        values = values[int(name)] if isinstance(values, list) else values[name]
    return isinstance(values, dict) and values.get("source", values.get("path")) in _LOADERS


def _values(values: Any, pattern: KeyPath, key: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The values at a key, whose part `*` is every entry of a list."""
    if not pattern:
        yield key, values
    elif pattern[0] == "*":
        for number, each in enumerate(values if isinstance(values, list) else ()):
            yield from _values(each, pattern[1:], (*key, str(number)))
    elif isinstance(values, dict) and pattern[0] in values:
        yield from _values(values[pattern[0]], pattern[1:], (*key, pattern[0]))


def _is_file(name: str) -> bool:
    return "://" not in name and (name.startswith(_PATHS) or name.lower().endswith(_DATA)) and len(name) < 1000


def _is_there(name: str, part: ForeignPart) -> bool:
    path = os.path.expanduser(name)  # noqa: PTH111 - a text
    place = part.document.path
    return find_file(path, place) is not None or find_folder(path, place) is not None or "*" in name or "\0" in name
