"""What is sampled of a disk and of a run's own files, and how a sample travels from the child. Looks at nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_train.checkpoints.cleanup import Item


@dataclass(frozen=True, slots=True)
class Space:
    """One file system that the run writes to. `path` is the run's folder on it."""

    path: str
    device: int  # st_dev: what tells file systems apart
    free_bytes: int  # to this user, without what is reserved
    total_bytes: int
    free_inodes: int
    total_inodes: int  # 0 where the file system does not count them


@dataclass(frozen=True, slots=True)
class Refusal:
    """A few bytes could not be written."""

    path: str
    errno: int
    message: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. The first space is that of the checkpoints."""

    at_s: float  # time.monotonic()
    spaces: tuple[Space, ...]
    own_bytes: int  # all of the run's files
    items: tuple[Item, ...]
    refusals: tuple[Refusal, ...] = ()

    @property
    def checkpoint_bytes(self) -> int:
        """What checkpoints take on the disk, whole or not."""
        return sum(item.size_bytes for item in self.items if item.kind in ("checkpoint", "leftover"))


def as_json(sample: Sample) -> dict[str, Any]:
    return {
        "at_s": sample.at_s,
        "spaces": [_fields(space) for space in sample.spaces],
        "own_bytes": sample.own_bytes,
        "items": [item_as_json(item) for item in sample.items],
        "refusals": [_fields(refusal) for refusal in sample.refusals],
    }


def sample_from(told: Mapping[str, Any]) -> Sample:
    """The sample whose `as_json` this is. KeyError or TypeError where it is none."""
    return Sample(
        told["at_s"],
        tuple(Space(**space) for space in told["spaces"]),
        told["own_bytes"],
        tuple(map(item_from, told["items"])),
        tuple(Refusal(**refusal) for refusal in told["refusals"]),
    )


def item_as_json(item: Item) -> dict[str, Any]:
    return _fields(item) | {"paths": [str(path) for path in item.paths]}


def item_from(told: Mapping[str, Any]) -> Item:
    return Item(**{**told, "paths": tuple(map(Path, told["paths"]))})


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
