"""What is known of a model's files: where they are, what could not be had, what its weights hold. Values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class Fault(StrEnum):
    """Why a repository or a file could not be had. The first six are an answer, the others are none."""

    BAD_NAME = "bad-name"
    MISSING = "missing"  # 404
    LOGIN = "login"  # 401: private, or not there at all
    BAD_TOKEN = "bad-token"
    GATED = "gated"  # 403: its terms are not accepted
    FORBIDDEN = "forbidden"  # 403: the token lacks a right
    RATE_LIMITED = "rate-limited"  # 429
    SERVER = "server"  # 5xx
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    NOT_HUB = "not-hub"  # something answers, and it is not the hub
    TRUNCATED = "truncated"  # fewer bytes came than were announced
    TOO_LARGE = "too-large"
    NOT_CACHED = "not-cached"
    UNREADABLE = "unreadable"  # a local file that may not be read, or cannot


class Refused(NamedTuple):
    """The repository could not be had at all."""

    fault: Fault
    detail: str


class Unread(NamedTuple):
    """A file that is there and could not be had."""

    file: str
    fault: Fault
    detail: str


class Weights(NamedTuple):
    """What the headers of the safetensors files say. No weight was read.

    `by_dtype` maps a dtype as safetensors names it to a count of numbers, `stored` counts numbers as stored (a packed
    int4 matrix has an eighth of its parameters). `layers` is the highest block number + 1. `embedding` is the shape of
    the token embedding, () where none was found. `faults` are files that are not what they should be.
    """

    files: int
    stored: int
    stored_bytes: int
    by_dtype: Mapping[str, int]
    layers: int
    embedding: tuple[int, ...]
    has_head: bool
    vision: int
    faults: tuple[str, ...]


class ModelFiles(NamedTuple):
    """A model that may be read. `folder` holds its small files; `sizes` lists all of its files with their bytes.

    `origin` is folder, cache or hub. `weights` is None where it has no safetensors file. `card` is the front matter
    of the model card as far as it was read: licence and the like.
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
    """As the program that reads a model prints it."""
    weights = files.weights
    return files._asdict() | {
        "folder": str(files.folder),
        "unread": [list(item) for item in files.unread],
        "weights": None if weights is None else weights._asdict(),
    }


def of_json(said: Mapping[str, Any]) -> ModelFiles:
    """The value that `to_json` printed. Raises KeyError, TypeError or ValueError where it is not one."""
    weights = said["weights"]
    if weights is not None:
        embedding, faults = tuple(weights["embedding"]), tuple(weights["faults"])
        weights = Weights(**(weights | {"embedding": embedding, "faults": faults}))
    unread = tuple(Unread(file, Fault(fault), detail) for file, fault, detail in said["unread"])
    return ModelFiles(**({**said} | {"folder": Path(said["folder"]), "unread": unread, "weights": weights}))
