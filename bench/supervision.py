"""Measures how much supervision slows the real trainer under `prime-train run`, and the time to its first step.

    python bench/supervision.py [--pairs 60] [--starts 5]

The model and data are the quickstart's. The supervisor is paused (SIGSTOP) and continued (SIGCONT) in turns of a
few seconds while the trainer runs, in the order off, on, on, off: a machine that becomes slower slows both sides. A
time is that between two reports of the trainer by the number of steps between them, with all that the loop does there,
and counts where both lie inside one turn. Nothing reads files meanwhile. Trainer, supervisor and watches share one core
there, so the trainer misses all that they take, and the other cores are left to the noise of the machine. CPU time is
that of the supervisor process, from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pty
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import record

from prime_train.core.rundir import RunDir
from prime_train.events import Progress, read

PROGRAM = Path(sys.executable).with_name("prime-train")
DEADLINE_S = 180.0
TURN_S = 4.0
WINDOW_S = 2.0
RESAMPLES = 2000
WARM_UP_STEPS = 10  # the first steps are slower: caches fill, threads start
ENDLESS = ("run.max_steps=100000", "checkpoint.interval_steps=100000", "eval.interval_steps=100000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="how often to pause the supervisor for a turn")
    parser.add_argument("--starts", type=int, default=5, help="how often to wait for a first step")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch the supervisor's CPU time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        _until_stepped(here, "warms-the-cache")
        rows = [
            record.emit("command to first step, warm", [_until_stepped(here, f"s{n}") for n in range(given.starts)]),
            *_cost(here, given.pairs, given.seconds),
            _cpu_of_live_screen(here, given.seconds),
        ]
    record.write("supervision", rows)


# --- a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """A run that trains until it is stopped, and its supervisor."""

    run_dir: RunDir
    supervisor: subprocess.Popen[bytes]
    began_s: float

    def steps_s(self) -> list[float]:
        """The time of every step so far."""
        lines = self.run_dir.metrics.read_bytes().split(b"\n")[:-1] if self.run_dir.metrics.exists() else []
        return [float(json.loads(line)["step_s"]) for line in lines]

    def until_steps(self, count: int) -> None:
        self.until(lambda: len(self.steps_s()) >= count)

    def until(self, holds: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + DEADLINE_S
        while not holds():
            if self.supervisor.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"{self.run_dir.path}: the run ended, or made no step in {DEADLINE_S:.0f} s")
            time.sleep(0.05)


@contextlib.contextmanager
def _running(folder: Path, name: str, terminal: int | None = None, core: int | None = None) -> Iterator[Running]:
    """`prime-train run quickstart` without a last step, on `core` alone if given. `terminal` gets its output."""
    values = [word for value in (*ENDLESS, f"run.dir={folder}") for word in ("--set", value)]
    began_s = time.time()
    pinned = () if core is None else ("taskset", "--cpu-list", str(core))
    process = subprocess.Popen(
        [*pinned, PROGRAM, "run", "quickstart", "--run-name", name, *values],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if terminal is None else terminal,
        env=os.environ | {"TERM": "xterm-256color"},
    )
    try:
        yield Running(RunDir(folder / name), process, began_s)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def _until_stepped(folder: Path, name: str) -> float:
    """Seconds from the command to the first step."""

    def stepped() -> list[float]:
        return [r.time_s for r in read(running.run_dir.events) if isinstance(r.event, Progress)]

    with _running(folder, name) as running:
        running.until(lambda: bool(stepped()))
        return stepped()[0] - running.began_s


# --- the cost ---------------------------------------------------------------------------------------


def _cost(folder: Path, pairs: int, seconds: float) -> list[dict[str, object]]:
    with _running(folder, "cost", core=min(os.sched_getaffinity(0))) as running:
        running.until_steps(WARM_UP_STEPS)
        found = _alternate(running, pairs)
        cores = _cores(running.supervisor.pid, seconds)
        rss_mib = psutil.Process(running.supervisor.pid).memory_info().rss / 2**20
    ratio = _compare(found)
    chance = random.Random(0)
    resampled = [_compare(chance.choices(found, k=len(found))) for _ in range(RESAMPLES)]
    error = round(statistics.stdev(resampled), 6)
    return [
        record.emit("step with the supervisor paused", [step_s for pair in found for step_s in pair.paused]),
        record.emit("step under supervision", [step_s for pair in found for step_s in pair.supervised]),
        record.emit("step time under supervision / paused", [ratio], unit="ratio", pairs=pairs, standard_error=error),
        _cpu("supervisor CPU while training, plain lines", cores),
        record.emit("supervisor memory", [round(rss_mib, 1)], unit="MiB"),
    ]


class Pair(NamedTuple):
    """Seconds for each step, by the reports in two turns beside each other."""

    paused: list[float]
    supervised: list[float]


def _compare(pairs: Sequence[Pair]) -> float:
    """The median over the pairs of a step under supervision, times a step with the supervisor paused."""
    return statistics.median(statistics.fmean(pair.supervised) / statistics.fmean(pair.paused) for pair in pairs)


def _alternate(running: Running, pairs: int) -> list[Pair]:
    """Steps with the supervisor paused and with it running, pair by pair."""
    turns: list[tuple[int, float, float]] = []  # signal, from, to
    for number in range(pairs):
        both = (signal.SIGSTOP, signal.SIGCONT)
        for sent in both if number % 2 == 0 else reversed(both):
            running.supervisor.send_signal(sent)
            began_s = time.time()
            time.sleep(TURN_S)
            turns.append((sent, began_s, time.time()))
    running.supervisor.send_signal(signal.SIGCONT)
    ends = [(r.event.step, r.time_s) for r in read(running.run_dir.events) if isinstance(r.event, Progress)]
    reports = [(start, end, (end - start) / (last - first)) for (first, start), (last, end) in itertools.pairwise(ends)]
    found = [
        (sent, [step_s for start, end, step_s in reports if since <= start and end <= to]) for sent, since, to in turns
    ]
    sides = [dict(pair) for pair in zip(found[::2], found[1::2], strict=True)]
    return [Pair(side[signal.SIGSTOP], side[signal.SIGCONT]) for side in sides if all(side.values())]


def _cpu_of_live_screen(folder: Path, seconds: float) -> dict[str, object]:
    ours, terminal = pty.openpty()
    drain = threading.Thread(target=_drain, args=(ours,), daemon=True)
    drain.start()
    with _running(folder, "screen", terminal) as running:
        running.until_steps(WARM_UP_STEPS)
        return _cpu("supervisor CPU while training, live screen", _cores(running.supervisor.pid, seconds))


def _drain(terminal: int) -> None:
    """Reads the output like a terminal, because otherwise the supervisor would wait for a full buffer."""
    while os.read(terminal, 65536):
        pass


def _cpu(what: str, cores: list[float]) -> dict[str, object]:
    return record.emit(what, cores, unit="cores", mean=round(statistics.fmean(cores), 6))


def _cores(pid: int, seconds: float) -> list[float]:
    """The share of a core that the process uses, for each time window."""
    found: list[float] = []
    spent_s, at_s = _cpu_s(pid), time.monotonic()
    for _ in range(max(1, round(seconds / WINDOW_S))):
        time.sleep(WINDOW_S)
        spent, now_s = _cpu_s(pid), time.monotonic()
        found.append((spent - spent_s) / (now_s - at_s))
        spent_s, at_s = spent, now_s
    return found


def _cpu_s(pid: int) -> float:
    """Time on a core in seconds, over all threads. schedstat counts nanoseconds, /proc/PID/stat only 10 ms ticks."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


if __name__ == "__main__":
    main()
