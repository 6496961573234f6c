"""A sample of the machine and of a run's processes on it, as the host program measures it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Room:
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the run. `own_bytes`: anonymous memory and swap, which only its forks share."""

    pid: int
    parent: int
    name: str
    rank: str
    own_bytes: int
    open_files: int
    open_files_limit: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. `stamp_s` is time.monotonic(), `wall_s` time.time(); `group` is None if no limit is set."""

    stamp_s: float
    wall_s: float
    memory: Room
    group: Room | None = None
    shared: Room | None = None
    oom_kills: Mapping[str, int] = field(default_factory=dict)  # the file of a counter to its count
    processes: tuple[Process, ...] = ()
    killed: tuple[tuple[int, str], ...] = ()  # (pid, name) from the kernel's log, if it can be read

    @property
    def free_bytes(self) -> int:
        """The memory that the run may still take."""
        return min(self.memory.free_bytes, self.group.free_bytes if self.group else self.memory.free_bytes)
