"""Judges samples of the machine and of a run's processes on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from statistics import fmean, linear_regression

from prime_train.core.units import GIB, format_bytes, format_seconds
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.host.sample import HostSample, ProcessMemory, is_kill_pending, judge_kills
from prime_train.supervise.watches.watch import Alarm, Answer


@dataclass(frozen=True, slots=True)
class HostLimits:
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


LIMITS = HostLimits()


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """The part of a run's state that the watch uses."""

    attempt: int = 0
    roles: Mapping[int, str] = field(default_factory=dict)  # pid of each child of the attempt
    step: int = 0
    max_steps: int = 0
    newest_complete: int = 0


def read_run(state: State) -> WatchedRun:
    live = state.live
    roles = {child.pid: child.role for child in live.children} if live else {}
    return WatchedRun(state.attempt_number, roles, state.step, state.max_steps, state.newest_complete)


def label_all(processes: Sequence[ProcessMemory], run: WatchedRun) -> dict[int, str]:
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


WARM_SAVES = 2  # the first saves allocate what later ones keep: staging buffers, caches, pools
LEAST_POINTS = 5
MOST_POINTS = 64
NOISE_FACTOR = 4.0
LEAST_RATIO = 0.05  # of the mean, over all points, because allocators alone cause less
LEAST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class HeldPoint:
    """The memory that the run's processes held at a save: anonymous memory and swap."""

    step: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """A line through the points: the bytes that each save adds, and how many more saves there is room for."""

    bytes_per_save: float
    saves_left: float
    saves_to_come: float

    @property
    def too_much(self) -> bool:
        """Whether the memory runs out before the run ends."""
        return self.saves_left < self.saves_to_come


def measure_growth(points: Sequence[HeldPoint], free_bytes: int, steps_to_come: float) -> Growth | None:
    """The growth over the saves of one attempt, by least squares; None if there is none beyond the noise."""
    counted = points[WARM_SAVES:]
    count = len(counted)
    if count < LEAST_POINTS:
        return None
    held = [float(point.held_bytes) for point in counted]
    slope, start = linear_regression(range(count), held)
    noise = sqrt(sum((value - start - slope * number) ** 2 for number, value in enumerate(held)) / (count - 2))
    if slope * (count - 1) < max(NOISE_FACTOR * noise, LEAST_RATIO * fmean(held), LEAST_BYTES):
        return None
    steps_per_save = max(1.0, (counted[-1].step - counted[0].step) / (count - 1))
    return Growth(slope, free_bytes / slope, steps_to_come / steps_per_save)


_SHM = "/dev/shm"
Standing = frozenset[tuple[str, str]]  # name and subject of the alarms of the last sample


@dataclass(frozen=True, slots=True)
class HostHistory:
    """What is kept from sample to sample."""

    last: HostSample | None = None
    kill_pending: bool = False  # it was counted; `last` has the counts, processes and labels before it
    labels: dict[int, str] = field(default_factory=dict)  # of the processes in `last`
    in_a_row: Mapping[tuple[str, str], int] = field(default_factory=dict)  # name and subject to samples over a limit
    levels: tuple[Alarm, ...] = ()  # as of `last`
    moments: tuple[tuple[float, Alarm], ...] = ()  # with the stamp until which each stands
    attempt: int = 0
    newest_complete: int = 0
    least_bytes: int | None = None  # held by the run since its newest save
    points: tuple[HeldPoint, ...] = ()


def judge(
    memory: HostHistory, samples: Iterable[HostSample], run: WatchedRun, limits: HostLimits = LIMITS
) -> tuple[HostHistory, tuple[Alarm, ...]]:
    """Everything that is wrong after some more samples, or after none."""
    for sample in samples:
        memory = _add_sample(memory, sample, run, limits)
    return memory, (*memory.levels, *(alarm for _, alarm in memory.moments))


def _add_sample(memory: HostHistory, sample: HostSample, run: WatchedRun, limits: HostLimits) -> HostHistory:
    moments = [(until_s, alarm) for until_s, alarm in memory.moments if sample.stamp_s < until_s]
    last, kill_pending = sample, False
    if memory.last is not None:
        kill_pending = not memory.kill_pending and is_kill_pending(memory.last, sample)
        if kill_pending:
            last = replace(sample, oom_kills=memory.last.oom_kills, processes=memory.last.processes)
        kills = () if kill_pending else judge_kills(memory.last, sample, memory.labels)
        found = [*kills, *_judge_clock(memory.last, sample, limits)]
        moments += [(sample.stamp_s + limits.stands_s, alarm) for alarm in found]
    memory = _add_save(memory, sample, run)
    labels = label_all(sample.processes, run)
    standing = frozenset((alarm.name, alarm.subject) for alarm in memory.levels)
    found = [*_judge_memory(sample, standing, limits), *_judge_open_files(sample, labels, standing, limits)]
    counts = {(alarm.name, alarm.subject): memory.in_a_row.get((alarm.name, alarm.subject), 0) + 1 for alarm in found}
    levels = [alarm for alarm in found if counts[alarm.name, alarm.subject] >= limits.in_a_row]
    levels += _judge_growth(memory, sample, run, limits)
    return replace(
        memory,
        last=last,
        kill_pending=kill_pending,
        labels=memory.labels | labels if kill_pending else labels,
        in_a_row=counts,
        levels=tuple(levels),
        moments=tuple({alarm.key: (until_s, alarm) for until_s, alarm in moments}.values()),
    )


def _add_save(memory: HostHistory, sample: HostSample, run: WatchedRun) -> HostHistory:
    """The memory with one more point if a save was completed. Another attempt starts without points."""
    if run.attempt != memory.attempt:
        return replace(memory, attempt=run.attempt, newest_complete=run.newest_complete, least_bytes=None, points=())
    held_bytes = sum(process.own_bytes for process in sample.processes)
    least_bytes = held_bytes if memory.least_bytes is None else min(memory.least_bytes, held_bytes)
    if run.newest_complete <= memory.newest_complete or not sample.processes:
        return replace(memory, least_bytes=least_bytes if sample.processes else memory.least_bytes)
    points = (*memory.points, HeldPoint(run.newest_complete, least_bytes))[-MOST_POINTS:]
    return replace(memory, newest_complete=run.newest_complete, least_bytes=None, points=points)


def _judge_memory(sample: HostSample, standing: Standing, limits: HostLimits) -> Iterator[Alarm]:
    for name, subject, room, least_bytes in (
        ("memory_low", "this machine", sample.memory, limits.memory_free_bytes),
        ("memory_low", "the container", sample.group, limits.memory_free_bytes),
        ("shared_memory_low", _SHM, sample.shared, limits.shared_free_bytes),
    ):
        if room is None or room.total_bytes == 0:
            continue
        needed_bytes = min(limits.free_ratio * room.total_bytes, least_bytes)
        if room.free_bytes >= needed_bytes * (limits.clear_ratio if (name, subject) in standing else 1.0):
            continue
        what, where = f"{format_bytes(room.free_bytes)} of {format_bytes(room.total_bytes)} are left", ""
        if name == "memory_low":
            what = f"memory of {subject}: {what}"
            why = f"the kernel kills the largest process when no memory is left; {_name_largest(sample)}"
            fix = "end other programs, or use fewer data workers or a smaller data.pack_buffer_docs"
        else:
            what, where = f"{subject}: {what}", subject
            why = "NCCL and data loader workers share memory there, and die with SIGBUS when it is full"
            fix = "start the container with a larger one (--shm-size=16g or --ipc=host), or delete old files there"
        yield Alarm("host", name, subject, "alert", "oom", what, why, fix, where)


def _name_largest(sample: HostSample) -> str:
    most = max(sample.processes, key=lambda process: process.own_bytes, default=None)
    if most is None:
        return "the run has no process now"
    return f"{most.name} ({most.pid}) holds {format_bytes(most.own_bytes)}, the most of this run"


def _judge_open_files(
    sample: HostSample, labels: Mapping[int, str], standing: Standing, limits: HostLimits
) -> Iterator[Alarm]:
    for process in sample.processes:
        subject = f"{labels[process.pid]} ({process.pid})"
        ratio = limits.open_files_ratio / (limits.clear_ratio if ("open_files", subject) in standing else 1.0)
        if process.open_files_limit is None or process.open_files < ratio * process.open_files_limit:
            continue
        what = f"{subject} has {process.open_files:,} files open; its limit is {process.open_files_limit:,}"
        why = 'at the limit the process fails with "Too many open files"'
        fix = "raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=), or find what leaves files open"
        yield Alarm("host", "open_files", subject, "alert", "bug", what, why, fix, f"/proc/{process.pid}/fd")


def _judge_growth(memory: HostHistory, sample: HostSample, run: WatchedRun, limits: HostLimits) -> Iterator[Alarm]:
    to_come = max(0, run.max_steps - run.newest_complete) if run.max_steps else inf
    found = measure_growth(memory.points, sample.free_bytes, to_come)
    if found is None or not found.too_much:
        return
    saves = max(1, round(found.saves_left))
    what = f"the run holds {format_bytes(found.bytes_per_save)} more memory at each save"
    why = f"the remaining {format_bytes(sample.free_bytes)} last for about {saves} more saves; the run needs more"
    fix = "look for data that is kept from step to step (lists of losses, caches, data workers); a restart frees it"
    answer: Answer = "alert" if saves <= limits.soon_saves else "note"
    yield Alarm("host", "memory_grows", "the run", answer, "oom", what, why, fix)


def _judge_clock(last: HostSample, sample: HostSample, limits: HostLimits) -> Iterator[Alarm]:
    step_s = (sample.wall_s - last.wall_s) - (sample.stamp_s - last.stamp_s)
    if abs(step_s) <= limits.clock_step_s:
        return
    way = "forward" if step_s > 0 else "back"
    what = f"the clock went {way} by {format_seconds(abs(step_s))}"
    why = "it was set, or the machine slept: times in logs and events are not comparable across this moment"
    fix = "let chrony or systemd-timesyncd set the clock, and prevent sleep during a run"
    yield Alarm("host", f"clock_{way}", "this machine", "note", "unknown", what, why, fix)
