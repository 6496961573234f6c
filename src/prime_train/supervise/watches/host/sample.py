"""A sample of the machine and of a run's processes on it, and the OOM kills that two samples show. Pure.

The host program measures it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prime_train.core.units import format_bytes
from prime_train.supervise.watches.watch import Alarm


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process of the run. `own_bytes`: anonymous memory and swap, which only its forks share."""

    pid: int
    parent: int
    name: str
    rank: str
    own_bytes: int
    open_files: int
    open_files_limit: int | None


@dataclass(frozen=True, slots=True)
class HostSample:
    """One moment. `stamp_s` is time.monotonic(), `wall_s` time.time(); `group` is None if no limit is set."""

    stamp_s: float
    wall_s: float
    memory: MemoryRoom
    group: MemoryRoom | None = None
    shared: MemoryRoom | None = None
    oom_kills: Mapping[str, int] = field(default_factory=dict)  # the file of a counter to its count
    processes: tuple[ProcessMemory, ...] = ()
    killed: tuple[tuple[int, str], ...] = ()  # (pid, name) from the kernel's log, if it can be read

    @property
    def free_bytes(self) -> int:
        """The memory that the run may still take."""
        return min(self.memory.free_bytes, self.group.free_bytes if self.group else self.memory.free_bytes)


_MACHINE = "/proc/vmstat"
_COMM_CHARS = 15  # of a name that the kernel keeps; psutil looks up the rest


def _count_kills(last: HostSample, sample: HostSample) -> dict[str, int]:
    return {path: count - last.oom_kills.get(path, count) for path, count in sample.oom_kills.items()}


def _list_gone(last: HostSample, sample: HostSample) -> list[ProcessMemory]:
    now = {process.pid for process in sample.processes}
    return [process for process in last.processes if process.pid not in now or _is_named(process, sample)]


def _is_named(process: ProcessMemory, sample: HostSample) -> bool:
    """Whether the kernel's log names it as killed. It may still be in the sample: its memory is freed first."""
    return (process.pid, process.name[:_COMM_CHARS]) in sample.killed


def is_kill_pending(last: HostSample, sample: HostSample) -> bool:
    """Whether a kill was counted, and the next sample shows more.

    The kernel counts it, sends the signal, and then writes its log, which alone names a process of a group below the
    run's own ones.
    """
    risen = _count_kills(last, sample)
    if max(risen.values(), default=0) <= 0 or sample.killed:
        return False
    return not _list_gone(last, sample) or _did_groups_stand(risen)


def _did_groups_stand(risen: Mapping[str, int]) -> bool:
    """Whether there are control groups, and none of them counted a kill."""
    groups = [path for path in risen if path != _MACHINE]
    return bool(groups) and all(risen[path] <= 0 for path in groups)


def judge_kills(last: HostSample, sample: HostSample, labels: Mapping[int, str]) -> Iterator[Alarm]:
    """Processes that the out-of-memory killer ended between two samples."""
    risen = _count_kills(last, sample)
    count = max(risen.values(), default=0)
    if count <= 0:
        return
    gone = _list_gone(last, sample)
    named = [process for process in gone if _is_named(process, sample)]
    inside = [path for path in risen if path != _MACHINE and risen[path] > 0]
    where = (inside or [_MACHINE])[0]
    # A group counts its own processes, even if the machine's limit killed them: a group whose count stands lost none.
    if not gone or (_did_groups_stand(risen) and not named):
        names = ", ".join(name for _, name in sample.killed)
        plural = "es" if count > 1 else ""
        what = f"the kernel killed {count} process{plural} of other programs because memory ran out"
        what, why = what + (f": {names}" if names else ""), "the next one may be a process of this run"
        fix = "see which other programs run on this machine"
        yield Alarm("host", "oom_kill", "another program", "note", "oom", what, why, fix, where)
        return
    ended = max(named or gone, key=lambda process: process.own_bytes)
    subject = labels.get(ended.pid, ended.name)
    if named:
        what = f"the kernel killed {subject} (pid {ended.pid}) because memory ran out"
    else:
        what = f"the kernel killed a process because memory ran out; {subject} is the largest one missing from the run"
    cause = "its container reached a limit" if inside else "the machine, or a group that held it, had no memory left"
    why = f"it held {format_bytes(ended.own_bytes)} at the last sample; {cause}"
    fix = "give the run more memory, or use fewer data workers, a smaller micro-batch or model"
    yield Alarm("host", "oom_kill", subject, "alert", "oom", what, why, fix, where)
