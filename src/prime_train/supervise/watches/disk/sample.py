"""A sample of the disks of a run and of its own files, as the disk program takes it. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from prime_train.checkpoints.cleanup import StoredItem


@dataclass(frozen=True, slots=True)
class Space:
    """One file system that the run writes to. `path` is the run's folder on it."""

    path: str
    device: int  # st_dev, which identifies the file system
    free_bytes: int  # for this user, without what is reserved
    total_bytes: int
    free_inodes: int
    total_inodes: int  # 0 if the file system does not count them


@dataclass(frozen=True, slots=True)
class Refusal:
    """A few bytes could not be written."""

    path: str
    errno: int
    message: str


@dataclass(frozen=True, slots=True)
class DiskSample:
    """One look. The first space is that of the checkpoints; in no known layout, that of the run's own folder."""

    at_s: float  # time.monotonic()
    spaces: tuple[Space, ...]
    own_bytes: int  # all of the run's files
    items: tuple[StoredItem, ...]
    refusals: tuple[Refusal, ...] = ()
