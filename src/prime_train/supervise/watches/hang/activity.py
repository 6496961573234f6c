"""Says whether processes that are silent do anything: asked before silence is called a hang. Ends nothing.

Work leaves traces: bytes through files, pipes and sockets, GPU memory that changes, compilers, busy data workers. A
rank that computes, or a GPU at 100 %, proves nothing: both wait in a collective that never ends by spinning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prime_train.core.process_id import Identity
from prime_train.core.units import GIB, format_bytes
from prime_train.supervise.watches.hang.silence_limits import SETUP_PHASES
from prime_train.supervise.watches.sampler import Sampler

STOPPED = "stopped by a signal"  # how what is said of such a process begins
_PROGRAM = Path(__file__).with_name("activity_program.py")

# What a hung run does all the same (heartbeats of its store, a log, telemetry) stays well under these.
FILE_BYTES_PER_S = 256 * 1024
NETWORK_BYTES_PER_S = 64 * 1024
CORES = 0.05  # what waits takes a hundredth; what works on a crowded machine may get no more than this
GPU_MEMORY_BYTES = GIB // 16
COMPILERS = frozenset(
    {"cc1", "cc1plus", "cicc", "clang", "clang++", "cudafe++", "fatbinary", "g++", "gcc", "ld", "lld", "ninja"}
    | {"nvcc", "nvlink", "ptxas", "rustc", "tileiras"}
)


@dataclass(frozen=True, slots=True)
class Process:
    """What one process has done since it was started. `worker`: it works for a rank, as a data loader's does."""

    pid: int
    started_s: float
    name: str
    state: str  # as psutil names it: "running", "sleeping", "disk-sleep", "stopped", ...
    cpu_s: float
    ended_children_cpu_s: float  # of children that have ended
    read_bytes: int  # of files and pipes, whether from the disk or from memory
    written_bytes: int
    worker: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU of the attempt at one moment."""

    uuid: str
    used_bytes: int
    utilisation_percent: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The processes of an attempt at one moment; `stamp_s` is time.monotonic()."""

    stamp_s: float
    processes: tuple[Process, ...]
    sockets: Mapping[str, int]  # inode to bytes that went over it
    gpus: tuple[GpuUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Activity:
    """What the processes were seen to do, in words, and whether that is work."""

    what: str
    busy: bool


def read_sample(raw: Mapping[str, Any], gpus: Iterable[GpuUse] = ()) -> Sample:
    """A line of the program as a value. Raises KeyError and TypeError where it is none."""
    processes = tuple(Process(**process) for process in raw["processes"])
    return Sample(float(raw["stamp_s"]), processes, raw["sockets"], tuple(gpus))


def busy(before: Sample, after: Sample, phase: str) -> Activity:
    """What was done between two samples, by a trainer that is in `phase`."""
    if not after.processes:
        return Activity("none of its processes is left", False)
    stopped = [str(process) for process in after.processes if process.state == "stopped"]
    if stopped:  # the others wait for it, and it does not go on by itself
        return Activity(f"{STOPPED}, as SIGSTOP does: {', '.join(stopped)}", False)
    seconds = max(after.stamp_s - before.stamp_s, 1e-3)
    work = [told for told in _work(_done(before, after), before, after, phase, seconds) if told]
    if work:
        return Activity("; ".join(work), True)
    return Activity(_idle(_done(before, after), after, seconds), False)


def _done(before: Sample, after: Sample) -> tuple[Process, ...]:
    """The processes with what each of them did in between, in place of all it ever did."""
    earlier = {(process.pid, process.started_s): process for process in before.processes}
    return tuple(_since(process, earlier.get((process.pid, process.started_s))) for process in after.processes)


def _since(process: Process, earlier: Process | None) -> Process:
    if earlier is None:
        return process
    return replace(
        process,
        cpu_s=max(0.0, process.cpu_s - earlier.cpu_s),
        ended_children_cpu_s=max(0.0, process.ended_children_cpu_s - earlier.ended_children_cpu_s),
        read_bytes=max(0, process.read_bytes - earlier.read_bytes),
        written_bytes=max(0, process.written_bytes - earlier.written_bytes),
    )


def _work(done: tuple[Process, ...], before: Sample, after: Sample, phase: str, seconds: float) -> Iterable[str]:
    """Each kind of work that was seen, in words."""
    compilers = sorted({process.name for process in done if process.name in COMPILERS})
    if compilers:
        yield f"compiles ({', '.join(compilers)})"
    read_bytes = sum(process.read_bytes for process in done)
    if read_bytes >= FILE_BYTES_PER_S * seconds:
        yield f"reads {format_bytes(read_bytes / seconds)}/s from files and pipes"
    written_bytes = sum(process.written_bytes for process in done)
    if written_bytes >= FILE_BYTES_PER_S * seconds:
        yield f"writes {format_bytes(written_bytes / seconds)}/s to files and pipes"
    network_bytes = sum(max(0, moved - before.sockets.get(inode, 0)) for inode, moved in after.sockets.items())
    if network_bytes >= NETWORK_BYTES_PER_S * seconds:
        yield f"moves {format_bytes(network_bytes / seconds)}/s over the network"
    yield _gpu_memory(before.gpus, after.gpus)
    ended_cores = sum(process.ended_children_cpu_s for process in done) / seconds
    if ended_cores >= CORES:
        yield f"runs short programs ({ended_cores:.1f} cores)"
    worker_cores = sum(process.cpu_s for process in done if process.worker) / seconds
    if worker_cores >= CORES:
        yield f"its data workers compute ({worker_cores:.1f} cores)"
    cores = sum(process.cpu_s for process in done) / seconds
    if phase in SETUP_PHASES and cores >= CORES:
        yield f"computes ({cores:.1f} cores)"


def _gpu_memory(before: Sequence[GpuUse], after: Sequence[GpuUse]) -> str:
    earlier = {gpu.uuid: gpu.used_bytes for gpu in before}
    changes = [gpu.used_bytes - earlier[gpu.uuid] for gpu in after if gpu.uuid in earlier]
    most = max(changes, key=abs, default=0)
    return f"GPU memory changes by {most / GIB:+.2f} GiB" if abs(most) >= GPU_MEMORY_BYTES else ""


def _idle(done: tuple[Process, ...], after: Sample, seconds: float) -> str:
    """How processes wait that do nothing that counts as work."""
    held = [str(process) for process in done if process.state == "disk-sleep"]
    if held:
        return f"waits in the kernel for a disk, a network file system or a driver: {', '.join(held)}"
    traced = [str(process) for process in done if process.state == "tracing-stop"]
    if traced:
        return f"held by a debugger: {', '.join(traced)}"
    spinning = [str(process) for process in done if process.cpu_s / seconds >= CORES]
    if spinning:
        return f"spins on the processor and moves no data, as in a collective that never ends: {', '.join(spinning)}"
    full = [gpu.uuid for gpu in after.gpus if gpu.utilisation_percent >= 90]
    if full:
        return (
            f"sleeps while the GPU is at 90 % or more and moves no data, as in a collective that never ends: {full[0]}"
        )
    return f"sleeps: {', '.join(str(process) for process in done[:4])}"


class ActivityCheck:
    """Looks at some process trees for a few seconds, from a child: reading of a wedged process may hang."""

    def __init__(
        self,
        roots: Sequence[Identity],
        log: Path,
        *,
        window_s: float = 5.0,
        interval_s: float = 1.0,
        late_s: float = 15.0,
    ) -> None:
        arguments = [str(interval_s), *(str(root.pid) for root in roots if root.alive)]
        self._sampler = Sampler(_PROGRAM, arguments, log)
        self._window_s = window_s
        self._late_s = late_s
        self._first: Sample | None = None
        self._last: Sample | None = None

    def begin(self) -> None:
        """Start to look. Only from the main thread; raises OSError where no process can be started."""
        self._sampler.begin()

    def look(self, phase: str, gpus: Iterable[GpuUse] = ()) -> Activity | None:
        """The verdict once the window has passed, None until then. `gpus`: their newest sample, where there is one."""
        now = tuple(gpus)
        for raw in self._sampler.take():
            self._last = read_sample(raw, now)
            self._first = self._first or self._last
        first, last = self._first, self._last
        if first is not None and last is not None and last.stamp_s - first.stamp_s >= self._window_s:
            return busy(first, last, phase)
        if self._sampler.ended is not None:
            return Activity(f"not known: looking at its processes ended with {self._sampler.ended}", False)
        if self._sampler.silent_s > self._late_s:
            return Activity(f"not known: its processes gave no answer within {self._late_s:g} s", False)
        return None

    def processes(self) -> tuple[Identity, ...]:
        """The child that looks, to be spared by a sweep."""
        return self._sampler.processes()

    def end(self) -> None:
        """Stop looking."""
        self._sampler.end()
