"""What the host watch looks at: a machine, a run's processes on it, and when something is told. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prime_train.core.units import GIB
from prime_train.supervise.state import State


@dataclass(frozen=True, slots=True)
class Limits:
    """When something is told. What stands is told until it is `clear_ratio` times better."""

    free_ratio: float = 0.05
    memory_free_bytes: int = 4 * GIB  # on a large machine 5 % is a lot
    shared_free_bytes: int = GIB // 4
    open_files_ratio: float = 0.8
    clear_ratio: float = 1.5
    in_a_row: int = 2  # samples: a peak that has passed by the next one is nobody's concern
    clock_step_s: float = 1.0  # a clock that is disciplined by NTP drifts 5 ms in 10 s at most
    stands_s: float = 120.0  # how long what happened at one moment is told
    soon_saves: float = 20.0


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Room:
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the run. `own_bytes`: anonymous memory and swap, which it shares with nobody but its forks."""

    pid: int
    parent: int
    name: str
    rank: str
    own_bytes: int
    open_files: int
    open_files_limit: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. `stamp_s` is time.monotonic(), `wall_s` time.time(); `group` is None where no limit is set."""

    stamp_s: float
    wall_s: float
    memory: Room
    group: Room | None = None
    shared: Room | None = None
    oom_kills: Mapping[str, int] = field(default_factory=dict)  # the file of a counter to its count
    processes: tuple[Process, ...] = ()
    killed: tuple[tuple[int, str], ...] = ()  # (pid, name) as the kernel's log names them, where it may be read

    @property
    def free_bytes(self) -> int:
        """What the run may still take."""
        return min(self.memory.free_bytes, self.group.free_bytes if self.group else self.memory.free_bytes)


@dataclass(frozen=True, slots=True)
class Run:
    """What the watch needs to know of the run."""

    attempt: int = 0
    roles: Mapping[int, str] = field(default_factory=dict)  # pid of each child of the attempt
    step: int = 0
    max_steps: int = 0
    newest_complete: int = 0


def read_sample(raw: Mapping[str, Any]) -> Sample:
    """A line of the program as a value. Raises KeyError and TypeError where it is none."""
    return Sample(
        raw["stamp_s"],
        raw["wall_s"],
        Room(**raw["memory"]),
        Room(**raw["group"]) if raw["group"] else None,
        Room(**raw["shared"]) if raw["shared"] else None,
        raw["oom_kills"],
        tuple(Process(**process) for process in raw["processes"]),
        tuple((killed["pid"], killed["name"]) for killed in raw["killed"]),
    )


def run_of(state: State) -> Run:
    """What of a run's state the watch needs."""
    live = state.live
    roles = {child.pid: child.role for child in live.children} if live else {}
    return Run(state.attempt_number, roles, state.step, state.max_steps, state.newest_complete)


def label_all(processes: Sequence[Process], run: Run) -> dict[int, str]:
    """What each process is called: the role of the child it descends from, and its rank."""
    parents = {process.pid: process.parent for process in processes}
    labels = {}
    for process in processes:
        above, steps = process.pid, 0
        while above not in run.roles and above in parents and steps < len(parents):
            above, steps = parents[above], steps + 1
        role = run.roles.get(above, process.name)
        labels[process.pid] = f"{role} rank {process.rank}" if process.rank else role
    return labels
