"""The files of a model: where they are, which could not be read, what its weights contain. Values, no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class ReadFault(StrEnum):
    """Why a repository or a file could not be read. The first six are answers of the hub."""

    BAD_NAME = "bad-name"
    MISSING = "missing"  # 404
    LOGIN = "login"  # 401: private or missing
    BAD_TOKEN = "bad-token"
    GATED = "gated"  # 403: terms not accepted
    FORBIDDEN = "forbidden"  # 403: the token lacks a permission
    RATE_LIMITED = "rate-limited"  # 429
    SERVER = "server"  # 5xx
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    NOT_HUB = "not-hub"  # the server that answers is not the hub
    TRUNCATED = "truncated"  # fewer bytes arrived than announced
    TOO_LARGE = "too-large"
    NOT_CACHED = "not-cached"
    UNREADABLE = "unreadable"  # a local file without read permission
    NOT_REGULAR = "not-regular"  # a local pipe, device or socket, or a link to one


class RefusedRead(NamedTuple):
    """No file of the repository could be read."""

    fault: ReadFault
    detail: str


class Unread(NamedTuple):
    """A file that exists but could not be read."""

    file: str
    fault: ReadFault
    detail: str


class TensorGroup(NamedTuple):
    """The tensors that differ only in the numbers in their name, which are `*` in `name`.

    `shapes` are all (dtype, shape). `blocks` has (number of the block, its tensors, the numbers in these); the block
    is -1 for a tensor outside the blocks.
    """

    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    blocks: tuple[tuple[int, int, int], ...]


class Weights(NamedTuple):
    """The summary of the safetensors headers.

    `by_dtype` maps a safetensors dtype to a count of numbers, `stored` counts stored numbers (a packed int4 matrix has
    an eighth of its parameters). `layers` is the highest block number + 1. `embedding` is the shape of the token
    embedding, () if none was found. `faults` describes damaged or missing files. `groups` is () if the tensors have
    too many names. `head_differs`: whether a stored head has other numbers than the embedding, None if not compared.
    """

    files: int
    stored: int
    stored_bytes: int
    by_dtype: Mapping[str, int]
    layers: int
    embedding: tuple[int, ...]
    faults: tuple[str, ...]
    groups: tuple[TensorGroup, ...] = ()
    head_differs: bool | None = None


class ModelFiles(NamedTuple):
    """A readable model. `folder` has its small files; `sizes` maps every file to its bytes.

    `origin` is folder, cache or hub. `weights` is None if there is no safetensors file. `card` has some keys of the
    model card's front matter, the licence among them.
    """

    name: str
    origin: str
    folder: Path
    revision: str
    sizes: Mapping[str, int]
    unread: tuple[Unread, ...]
    weights: Weights | None
    card: Mapping[str, str]
    gated: str = ""

    def unread_of(self, file: str) -> Unread | None:
        return next((item for item in self.unread if item.file == file), None)


def to_json(files: ModelFiles) -> dict[str, Any]:
    """The JSON document that the program prints."""
    weights = files.weights
    return files._asdict() | {
        "folder": str(files.folder),
        "unread": [list(item) for item in files.unread],
        "weights": None if weights is None else weights._asdict(),
    }


def from_json(document: Mapping[str, Any]) -> ModelFiles:
    """The value for a document of `to_json`. Raises KeyError, TypeError or ValueError for any other document."""
    weights = document["weights"]
    if weights is not None:
        embedding, faults = tuple(weights["embedding"]), tuple(weights["faults"])
        groups = tuple(
            TensorGroup(name, tuple((dtype, tuple(shape)) for dtype, shape in shapes), tuple(map(tuple, blocks)))
            for name, shapes, blocks in weights["groups"]
        )
        weights = Weights(**(weights | {"embedding": embedding, "faults": faults, "groups": groups}))
    unread = tuple(Unread(file, ReadFault(fault), detail) for file, fault, detail in document["unread"])
    return ModelFiles(**({**document} | {"folder": Path(document["folder"]), "unread": unread, "weights": weights}))


_KEYS = frozenset(("license", "license_name", "license_link", "pipeline_tag", "library_name", "base_model"))
_LINE = re.compile(r"^([a-z_]+):[ \t]*(.*)$")


def front_matter(text: str) -> dict[str, str]:
    """Key -> text, from the block between the two `---` lines at the top; for a list, its first element.

    Source: huggingface.co/docs/hub/model-cards, metadata.
    """
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    found: dict[str, str] = {}
    key = ""
    for line in lines[1:]:
        if line.strip() == "---":
            return found
        match = _LINE.match(line)
        if match:
            key = match[1]
            if key in _KEYS and _plain(match[2]):
                found[key] = _plain(match[2])
        elif key in _KEYS and key not in found and line.lstrip().startswith("- "):
            found[key] = _plain(line.lstrip()[2:])
    return {}  # the block is not closed, so it is no front matter


def _plain(value: str) -> str:
    return value.partition(" #")[0].strip().strip("[]").partition(",")[0].strip().strip("\"'")
