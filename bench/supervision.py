"""Measures how much supervision slows the real trainer under `prime-train run`, and the time to its first step.

    python bench/supervision.py [--blocks 20] [--starts 5]

The model and data are the quickstart's. The supervisor is paused (SIGSTOP) and continued (SIGCONT) in turns while the
trainer runs, and the step times of each paused block are compared with those of the next block. CPU time is that of the
supervisor process, from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import record

from prime_train.core.rundir import RunDir
from prime_train.events import Progress, read

PROGRAM = Path(sys.executable).with_name("prime-train")
DEADLINE_S = 180.0
BLOCK_STEPS = 10
WINDOW_S = 2.0
WARM_UP_STEPS = 10  # the first steps are slower: caches fill, threads start
ENDLESS = ("run.max_steps=100000", "checkpoint.interval_steps=100000", "eval.interval_steps=100000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20, help="how often to pause the supervisor")
    parser.add_argument("--starts", type=int, default=5, help="how often to wait for a first step")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch the supervisor's CPU time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        _until_stepped(here, "warms-the-cache")
        rows = [
            record.emit("command to first step, warm", [_until_stepped(here, f"s{n}") for n in range(given.starts)]),
            *_cost(here, given.blocks, given.seconds),
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
def _running(folder: Path, name: str, terminal: int | None = None) -> Iterator[Running]:
    """`prime-train run quickstart` without a last step; its output goes to `terminal` or is discarded."""
    values = [word for value in (*ENDLESS, f"run.dir={folder}") for word in ("--set", value)]
    began_s = time.time()
    process = subprocess.Popen(
        [PROGRAM, "run", "quickstart", "--run-name", name, *values],
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


def _cost(folder: Path, blocks: int, seconds: float) -> list[dict[str, object]]:
    with _running(folder, "cost") as running:
        running.until_steps(WARM_UP_STEPS)
        paused, supervised = _alternate(running, blocks)
        cores = _cores(running.supervisor.pid, seconds)
        rss_mib = psutil.Process(running.supervisor.pid).memory_info().rss / 2**20
    ratios = [
        after / before
        for before, after in zip(map(statistics.median, paused), map(statistics.median, supervised), strict=True)
    ]
    return [
        record.emit("step with the supervisor paused", [step_s for block in paused for step_s in block]),
        record.emit("step under supervision", [step_s for block in supervised for step_s in block]),
        record.emit(
            "step time under supervision / paused, block by block",
            ratios,
            unit="ratio",
            p10=round(record.percentile(ratios, 0.1), 6),
            standard_error=round(statistics.stdev(ratios) / len(ratios) ** 0.5, 6),
        ),
        _cpu("supervisor CPU while training, plain lines", cores),
        record.emit("supervisor memory", [round(rss_mib, 1)], unit="MiB"),
    ]


def _alternate(running: Running, blocks: int) -> tuple[list[list[float]], list[list[float]]]:
    """Step times of the blocks with the supervisor paused, and of the blocks with it running."""
    found: dict[int, list[list[float]]] = {signal.SIGSTOP: [], signal.SIGCONT: []}
    for _ in range(blocks):
        for number in (signal.SIGSTOP, signal.SIGCONT):
            running.supervisor.send_signal(number)
            first = len(running.steps_s()) + 1  # the current step belongs to neither block
            running.until_steps(first + BLOCK_STEPS)
            found[number].append(running.steps_s()[first : first + BLOCK_STEPS])
    return found[signal.SIGSTOP], found[signal.SIGCONT]


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
