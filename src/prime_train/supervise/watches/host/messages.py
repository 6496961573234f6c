"""What the host watch tells, one function for each kind of alarm. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from prime_train.core.units import format_bytes, format_seconds
from prime_train.supervise.watches.host.growth import Point, growth
from prime_train.supervise.watches.host.samples import Limits, Run, Sample
from prime_train.supervise.watches.watch import Alarm

_SHM = "/dev/shm"
_MACHINE = "/proc/vmstat"
_COMM_CHARS = 15  # of a name the kernel keeps so many; psutil looks up the rest


def low(sample: Sample, standing: frozenset[tuple[str, str]], limits: Limits) -> Iterator[Alarm]:
    for name, subject, room, least_bytes in (
        ("memory_low", "this machine", sample.memory, limits.memory_free_bytes),
        ("memory_low", "the container", sample.group, limits.memory_free_bytes),
        ("shared_memory_low", _SHM, sample.shared, limits.shared_free_bytes),
    ):
        if room is None or room.total_bytes == 0:
            continue
        wanted_bytes = min(limits.free_ratio * room.total_bytes, least_bytes)
        if room.free_bytes >= wanted_bytes * (limits.clear_ratio if (name, subject) in standing else 1.0):
            continue
        what = f"{format_bytes(room.free_bytes)} of {format_bytes(room.total_bytes)} are left"
        if name == "memory_low":
            yield Alarm(
                "host",
                name,
                subject,
                "alert",
                "oom",
                f"memory of {subject}: {what}",
                f"the kernel ends the largest process when none is left; {_largest(sample)}",
                "end other programs, or use fewer data workers or a smaller data.pack_buffer_docs",
            )
        else:
            yield Alarm(
                "host",
                name,
                subject,
                "alert",
                "oom",
                f"{subject}: {what}",
                "NCCL and data loader workers share memory there and die with SIGBUS when it is full",
                "start the container with a larger one (--shm-size=16g or --ipc=host), or delete what is left there",
                subject,
            )


def _largest(sample: Sample) -> str:
    most = max(sample.processes, key=lambda process: process.own_bytes, default=None)
    if most is None:
        return "the run has no process at present"
    return f"{most.name} ({most.pid}) holds {format_bytes(most.own_bytes)}, the most of this run"


def open_files(
    sample: Sample, labels: Mapping[int, str], standing: frozenset[tuple[str, str]], limits: Limits
) -> Iterator[Alarm]:
    for process in sample.processes:
        subject = f"{labels[process.pid]} ({process.pid})"
        ratio = limits.open_files_ratio / (limits.clear_ratio if ("open_files", subject) in standing else 1.0)
        if process.open_files_limit is None or process.open_files < ratio * process.open_files_limit:
            continue
        yield Alarm(
            "host",
            "open_files",
            subject,
            "alert",
            "bug",
            f"{subject} has {process.open_files:,} files open; its limit is {process.open_files_limit:,}",
            'the next one beyond it ends the process with "Too many open files"',
            "raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=), or look for what leaves files open",
            f"/proc/{process.pid}/fd",
        )


def grows(points: Sequence[Point], sample: Sample, run: Run, limits: Limits) -> Iterator[Alarm]:
    to_come = max(0, run.max_steps - run.newest_complete) if run.max_steps else inf
    found = growth(points, sample.free_bytes, to_come)
    if found is None or not found.too_much:
        return
    saves = max(1, round(found.saves_left))
    yield Alarm(
        "host",
        "memory_grows",
        "the run",
        "alert" if saves <= limits.soon_saves else "note",
        "oom",
        f"the run holds {format_bytes(found.bytes_per_save)} more memory at each save",
        f"the {format_bytes(sample.free_bytes)} that are left last for about {saves} more saves; the run takes more",
        "look for what is kept from step to step (lists of losses, caches, data workers); a restart gives it back",
    )


def killed(last: Sample, sample: Sample, labels: Mapping[int, str]) -> Iterator[Alarm]:
    """Processes that the out-of-memory killer ended between two samples."""
    risen = {path: count - last.oom_kills.get(path, count) for path, count in sample.oom_kills.items()}
    count = max(risen.values(), default=0)
    if count <= 0:
        return
    now = {process.pid for process in sample.processes}
    gone = [process for process in last.processes if process.pid not in now]
    named = [process for process in gone if (process.pid, process.name[:_COMM_CHARS]) in sample.killed]
    groups = [path for path in risen if path != _MACHINE]
    inside = [path for path in groups if risen[path] > 0]
    where = (inside or [_MACHINE])[0]
    # A group counts its own processes, whatever they were killed by: one that did not count lost none.
    if not gone or (groups and not inside and not named):
        yield _other_killed(count, where, sample)
        return
    ended = max(named or gone, key=lambda process: process.own_bytes)
    subject = labels.get(ended.pid, ended.name)
    held = f"it held {format_bytes(ended.own_bytes)} when last looked at"
    yield Alarm(
        "host",
        "oom_kill",
        subject,
        "alert",
        "oom",
        f"the kernel ended {subject} (pid {ended.pid}) because memory ran out"
        if named
        else f"the kernel ended a process because memory ran out; of the run's that are gone {subject} was the largest",
        f"{held}; "
        + ("a limit of its container was reached" if inside else "the machine, or a group it was in, had none left"),
        "give the run more memory, or take fewer data workers, a smaller micro-batch or model",
        where,
    )


def _other_killed(count: int, where: str, sample: Sample) -> Alarm:
    names = ", ".join(name for _, name in sample.killed)
    return Alarm(
        "host",
        "oom_kill",
        "another program",
        "note",
        "oom",
        f"the kernel ended {count} process{'es' if count > 1 else ''} of other programs because memory ran out"
        + (f": {names}" if names else ""),
        "the next one may be of this run",
        "see what else runs on this machine",
        where,
    )


def clock(last: Sample, sample: Sample, limits: Limits) -> Iterator[Alarm]:
    step_s = (sample.wall_s - last.wall_s) - (sample.stamp_s - last.stamp_s)
    if abs(step_s) <= limits.clock_step_s:
        return
    way = "forward" if step_s > 0 else "back"
    yield Alarm(
        "host",
        f"clock_{way}",
        "this machine",
        "note",
        "unknown",
        f"the clock went {way} by {format_seconds(abs(step_s))}",
        "it was set, or the machine slept: times in logs and events do not compare across this moment",
        "let chrony or systemd-timesyncd keep the time, and no machine sleep while a run is on",
    )
