"""Checks whether silent processes do any work, before their silence counts as a hang, and keeps evidence of a hang.

Work leaves traces: bytes through files, pipes and sockets, compilers, busy data workers. A rank that computes proves
nothing, because it spins while it waits in a collective that never ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_bytes
from prime_train.events import EvidenceKept
from prime_train.supervise.core.state import Live
from prime_train.supervise.evidence.gather import collect
from prime_train.supervise.watches.hang.silence_limits import SETUP_PHASES
from prime_train.supervise.watches.sample_lines import load
from prime_train.supervise.watches.sampler import SampledWatch, Sampler

STOPPED = "stopped by a signal"  # how the description of such a process begins
_PROGRAM = Path(__file__).with_name("activity_program.py")

# The activity of a hung run (heartbeats of its store, a log, telemetry) stays well under these.
FILE_BYTES_PER_S = 256 * 1024
NETWORK_BYTES_PER_S = 64 * 1024
CORES = 0.05  # a waiting process takes a hundredth; a working one on a crowded machine may get no more than this
COMPILERS = frozenset(
    {"cc1", "cc1plus", "cicc", "clang", "clang++", "cudafe++", "fatbinary", "g++", "gcc", "ld", "lld", "ninja"}
    | {"nvcc", "nvlink", "ptxas", "rustc", "tileiras"}
)
EVIDENCE_DEADLINE_S = 15.0
LATE_S = 15.0  # a sample that takes longer gives no answer


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """The work of one process since its start. `worker`: it works for a rank, as a data loader's process does."""

    pid: int
    started_s: float
    name: str
    state: str  # as psutil names it: "running", "sleeping", "disk-sleep", "stopped", ...
    cpu_s: float
    ended_children_cpu_s: float  # of children that have ended
    read_bytes: int  # from files and pipes, by the disk or by memory
    written_bytes: int
    worker: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """The processes of an attempt at one moment; `stamp_s` is time.monotonic()."""

    stamp_s: float
    processes: tuple[ProcessActivity, ...]
    sockets: Mapping[str, int]  # inode to bytes that went over it


@dataclass(frozen=True, slots=True)
class Activity:
    """A description of what the processes did, and whether that is work."""

    what: str
    busy: bool


def judge_activity(before: ActivitySample, after: ActivitySample, phase: str) -> Activity:
    if not after.processes:
        return Activity("none of its processes is left", False)
    stopped = [str(process) for process in after.processes if process.state == "stopped"]
    if stopped:  # the others wait for it, and it does not continue by itself
        return Activity(f"{STOPPED}, as SIGSTOP does: {', '.join(stopped)}", False)
    seconds = max(after.stamp_s - before.stamp_s, 1e-3)
    done = _subtract(before, after)
    work = list(_describe_work(done, before, after, phase, seconds))
    return Activity("; ".join(work) if work else _describe_idle(done, seconds), bool(work))


def _subtract(before: ActivitySample, after: ActivitySample) -> tuple[ProcessActivity, ...]:
    """The processes with their work between the samples, in place of the work since their start."""
    earlier = {(process.pid, process.started_s): process for process in before.processes}
    return tuple(_subtract_one(process, earlier.get((process.pid, process.started_s))) for process in after.processes)


def _subtract_one(process: ProcessActivity, earlier: ProcessActivity | None) -> ProcessActivity:
    if earlier is None:
        return process
    return replace(
        process,
        cpu_s=max(0.0, process.cpu_s - earlier.cpu_s),
        ended_children_cpu_s=max(0.0, process.ended_children_cpu_s - earlier.ended_children_cpu_s),
        read_bytes=max(0, process.read_bytes - earlier.read_bytes),
        written_bytes=max(0, process.written_bytes - earlier.written_bytes),
    )


def _describe_work(
    done: tuple[ProcessActivity, ...], before: ActivitySample, after: ActivitySample, phase: str, seconds: float
) -> Iterator[str]:
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
    ended_cores = sum(process.ended_children_cpu_s for process in done) / seconds
    if ended_cores >= CORES:
        yield f"runs short programs ({ended_cores:.1f} cores)"
    worker_cores = sum(process.cpu_s for process in done if process.worker) / seconds
    if worker_cores >= CORES:
        yield f"its data workers compute ({worker_cores:.1f} cores)"
    cores = sum(process.cpu_s for process in done) / seconds
    if phase in SETUP_PHASES and cores >= CORES:
        yield f"computes ({cores:.1f} cores)"


def _describe_idle(done: tuple[ProcessActivity, ...], seconds: float) -> str:
    """How processes wait that do no work."""
    held = [str(process) for process in done if process.state == "disk-sleep"]
    if held:
        return f"waits in the kernel for a disk, a network file system or a driver: {', '.join(held)}"
    traced = [str(process) for process in done if process.state == "tracing-stop"]
    if traced:
        return f"held by a debugger: {', '.join(traced)}"
    spinning = [str(process) for process in done if process.cpu_s / seconds >= CORES]
    if spinning:
        return f"spins on the processor and moves no data, as in a collective that never ends: {', '.join(spinning)}"
    return f"sleeps: {', '.join(str(process) for process in done[:4])}"


class ActivityCheck(SampledWatch):
    """Samples some process trees for a few seconds, in a child because a read of a wedged process may hang."""

    def __init__(self, roots: Sequence[Identity], log: Path, *, window_s: float = 5.0, interval_s: float = 1.0) -> None:
        arguments = [str(interval_s), *(str(root.pid) for root in roots if root.alive)]
        self._sampler = Sampler(_PROGRAM, arguments, log)
        self._window_s = window_s
        self._samples: list[ActivitySample] = []

    def look(self, phase: str) -> Activity | None:
        """The verdict after the window has passed; None until then."""
        self._samples += [load(ActivitySample, raw) for raw in self._sampler.take()]
        if self._samples and self._samples[-1].stamp_s - self._samples[0].stamp_s >= self._window_s:
            return judge_activity(self._samples[0], self._samples[-1], phase)
        if self._sampler.ended is not None:
            return Activity(f"not known: the program that checks them ended with {self._sampler.ended}", False)
        if self._sampler.silent_s > LATE_S:
            return Activity(f"not known: its processes gave no answer within {LATE_S:g} s", False)
        return None


class Suspicion:
    """The checks of one silent attempt: one check of its activity at a time, and its evidence once."""

    def __init__(self, run_dir: RunDir, inbox: SimpleQueue[object], hidden: Sequence[str]) -> None:
        self._run_dir = run_dir
        self._inbox = inbox
        self._hidden = tuple(hidden)
        self._check: ActivityCheck | None = None
        self._unseen = Activity("not known", False)  # the reason if there is no check
        self._silent_since_s = 0.0
        self._evidence_of = 0

    def suspect(self, live: Live) -> None:
        """Start a check of its processes. Repeated calls during the same silence start one check."""
        if self._check is not None and self._silent_since_s == live.last_sign_s:
            return
        self.drop()
        roots = [Identity(child.pid, child.start_ticks) for child in live.children]
        check = ActivityCheck(roots, self._run_dir.watches / "activity.log")
        self._silent_since_s = live.last_sign_s
        try:
            check.begin()
        except OSError as error:  # out of processes or memory: silence that cannot be checked counts
            self._unseen = Activity(f"not known: no process can start to check it: {error.strerror}", False)
        else:
            self._check = check

    def verdict(self, live: Live) -> Activity | None:
        """The activity of its processes; None while the check runs."""
        self.suspect(live)
        if self._check is None:
            return self._unseen
        found = self._check.look(live.phase)
        if found is not None:
            self.drop()
        return found

    def keep_evidence(self, attempt: int, live: Live, logs: Sequence[Path]) -> None:
        """Write the evidence in a thread, once for each attempt; the thread puts EvidenceKept into the inbox."""
        if self._evidence_of == attempt:
            return
        self._evidence_of = attempt
        folder, metrics = self._run_dir.evidence(attempt), self._run_dir.metrics

        def work() -> None:
            items = collect(folder, live.children, logs, self._hidden, EVIDENCE_DEADLINE_S, metrics=metrics)
            self._inbox.put(EvidenceKept(attempt, str(folder), tuple(items)))

        threading.Thread(target=work, name=f"evidence-{attempt}", daemon=True).start()

    def processes(self) -> tuple[Identity, ...]:
        return self._check.processes() if self._check is not None else ()

    def drop(self) -> None:
        if self._check is not None:
            self._check.end()
            self._check = None
