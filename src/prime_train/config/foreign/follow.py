"""Follows the files that a config points to: the DeepSpeed file of a trainer, the config of accelerate.

Only files that are there are followed, and only where the path is written out: relative to the working directory, to
the folder of the file, or to a folder above it, which the programs are usually started in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.config.foreign import recognise
from prime_train.config.foreign.document import read_documents
from prime_train.config.foreign.values import MOST_BYTES, ForeignPart, open_values
from prime_train.core import outside
from prime_train.registry.launchers import pointers_of
from prime_train.toml.document import Document, value_at

# ruff: noqa: PTH100, PTH117, PTH118, PTH120 - paths are texts here

_MOST_FILES = 8
_OVERRULED = {"accelerate-launch": "accelerate"}  # flags of another format than the file that they overrule
_MOST_FOLDERS = 12  # above the file


class Followed(NamedTuple):
    """The parts of the files that were read, and the documents of files that are not YAML or JSON."""

    parts: tuple[ForeignPart, ...]
    faulty: tuple[Document, ...]


def follow(parts: tuple[ForeignPart, ...]) -> Followed:
    """Read the files that the keys of parts name, and those that they name in turn. Each file is read once."""
    waiting = list(parts)
    seen = {os.path.realpath(part.document.path) for part in parts}
    found: list[ForeignPart] = []
    faulty: list[Document] = []
    while waiting:
        part = waiting.pop(0)
        for key, format_ in pointers(part.format).items():
            value = value_at(part.values, tuple(key.split(".")))
            if isinstance(value, dict) and value:
                found.append(ForeignPart(format_, value, part.document, (*part.at, *key.split(".")), part.start))
            path = find_file(value, part.document.path) if isinstance(value, str) else None
            if path is None or os.path.realpath(path) in seen or len(seen) >= _MOST_FILES:
                continue
            seen.add(os.path.realpath(path))
            for document in _read(path):
                if document.fault is not None:
                    faulty.append(document)
                else:
                    kind = recognise.formats()[format_]
                    values = open_values(document.values, exponents=kind.exponents, references=kind.references)
                    if part.start and format_ == _OVERRULED.get(part.format, part.format):
                        values = overrule(values, part.values)
                    waiting.append(ForeignPart(format_, values, document, start=part.start))
                    found.append(waiting[-1])
    return Followed(tuple(found), tuple(faulty))


def pointers(format_: str) -> Mapping[str, str]:
    """The keys of a format that name another file -> the format of that file."""
    kind = recognise.formats().get(format_)
    return {**pointers_of(format_), **({} if kind is None else kind.points_to)}


def overrule(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a file with those of the command line in their place."""
    merged = dict(values)
    for key, value in flags.items():
        below = merged.get(key)
        merged[key] = overrule(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _read(path: str) -> tuple[Document, ...]:
    """The documents of a file; none if it is not a readable text file of a config's size."""
    try:
        text = outside.read_text(path, MOST_BYTES)
    except (OSError, ValueError):
        return ()
    return (Document.parse(text, path),) if path.endswith(".toml") else read_documents(text, path)[:1]


def find_file(name: str, config: str) -> str | None:
    """The path of a file that a config names; None if there is none, or the name is no plain path.

    It is relative to the working directory if both names are, so that a file has one name in all that is reported.
    """
    path = next((path for path in _places(name, config) if os.path.isfile(path)), None)  # noqa: PTH113 - a text
    return path if path is None or os.path.isabs(name) or os.path.isabs(config) else os.path.relpath(path)


def find_folder(name: str, config: str) -> str | None:
    """The path of a folder that a config names; None if there is none, or the name is no plain path."""
    return next((path for path in _places(name, config) if os.path.isdir(path)), None)  # noqa: PTH112 - a text


def exists(name: str, config: str) -> bool | None:
    """Whether a file or folder that a config names exists. None for a path that another machine may have."""
    places = list(_places(name, config))
    if any(os.path.exists(path) for path in places):  # noqa: PTH110 - a text
        return True
    return None if not places or os.path.isabs(name) else False


def _places(name: str, config: str) -> Iterator[str]:
    """Where a file may be that a config names."""
    if not name or "://" in name or name.startswith("~") or "\0" in name or len(name) > 1000:
        return
    if os.path.isabs(name):
        yield name
        return
    yield name
    folder = os.path.dirname(os.path.abspath(config))
    for _ in range(_MOST_FOLDERS):
        yield os.path.normpath(os.path.join(folder, name))
        if folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)
