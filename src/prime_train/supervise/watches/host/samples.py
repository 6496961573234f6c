"""A sample of the machine and of a run's processes on it, and the limits by which it is judged. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prime_train.core.units import GIB
from prime_train.supervise.state import State


@dataclass(frozen=True, slots=True)
class Limits:
    """When an alarm is raised. It stands until the value is `clear_ratio` times better."""

    free_ratio: float = 0.05
    memory_free_bytes: int = 4 * GIB  # on a large machine 5 % is a lot
    shared_free_bytes: int = GIB // 4
    open_files_ratio: float = 0.8
    clear_ratio: float = 1.5
    in_a_row: int = 2  # samples, because a peak that has passed by the next sample does not matter
    clock_step_s: float = 1.0  # a clock under NTP drifts 5 ms in 10 s at most
    stands_s: float = 120.0  # how long an alarm about one moment stands
    soon_saves: float = 20.0


LIMITS = Limits()


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


@dataclass(frozen=True, slots=True)
class Run:
    """The part of a run's state that the watch uses."""

    attempt: int = 0
    roles: Mapping[int, str] = field(default_factory=dict)  # pid of each child of the attempt
    step: int = 0
    max_steps: int = 0
    newest_complete: int = 0


def read_run(state: State) -> Run:
    live = state.live
    roles = {child.pid: child.role for child in live.children} if live else {}
    return Run(state.attempt_number, roles, state.step, state.max_steps, state.newest_complete)


def label_all(processes: Sequence[Process], run: Run) -> dict[int, str]:
    """A name for each process: the role of the child it descends from, and its rank."""
    parents = {process.pid: process.parent for process in processes}
    labels = {}
    for process in processes:
        above, steps = process.pid, 0
        while above not in run.roles and above in parents and steps < len(parents):
            above, steps = parents[above], steps + 1
        role = run.roles.get(above, process.name)
        labels[process.pid] = f"{role} rank {process.rank}" if process.rank else role
    return labels
