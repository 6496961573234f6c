"""Measures the cost of a supervisor over a day of a million events, with all watches, then kill -9 and a restart.

    python bench/day.py [--events 1000000] [--idle-s 40]

The events of a day arrive within a few minutes, but slowly enough that the supervisor reads each one (of a megabyte at
once it would skip some). Memory is the proportional set size (PSS) of the supervisor and of the child processes of its
watches. The CPU seconds of the events are divided by the 86,400 s of a day; the CPU time of the idle supervisor and its
child processes is measured separately and added.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import record

from prime_train.core.rundir import RunDir
from prime_train.events import (
    CheckpointSaved,
    CheckpointStarted,
    Evaluated,
    Event,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    decode,
    encode,
)
from prime_train.programs.bundled import Bundled
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source
from prime_train.supervise.core.loop import supervise
from prime_train.supervise.launch.program import Launch
from prime_train.supervise.processes.lock import hold_run

DAY_S = 86_400.0
EVENTS_PER_S = 5000  # 0.4 MB between two reads of the supervisor
EVALUATIONS, SAVES = 288, 96  # every 5 minutes, every 15 minutes
READS = 5
DEADLINE_S = 120.0


class Day(Bundled):
    """The bundled program with this file as its trainer."""

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        del resume_step
        argv = (sys.executable, __file__, "--trainer", str(run_dir.path), str(attempt), str(run.run.max_steps))
        return (Launch("trainer", argv, Path.cwd(), run_dir.log(attempt, "trainer")),)


def main() -> None:
    match sys.argv[1:]:
        case ["--trainer", path, attempt, events]:
            train(RunDir(Path(path)), int(attempt), int(events))
        case ["--supervisor", path, events]:
            run_dir = RunDir(Path(path))
            with hold_run(run_dir):
                supervise(_run(run_dir, int(events)), run_dir, lambda *_: None, Day())
        case _:
            measure()


def measure() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--idle-s", type=float, default=40.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(Path(folder) / "day")
        record.write("day", [*_day(run_dir, given.events, given.idle_s), *_again(run_dir, given.events)])


# --- the day ----------------------------------------------------------------------------------------


def _day(run_dir: RunDir, events: int, idle_s: float) -> Iterator[dict[str, object]]:
    supervisor = _supervisor(run_dir, events)
    try:
        sizes_mib = []
        for tenth in range(1, 11):
            _until(run_dir, events * tenth // 10)
            sizes_mib.append(_memory_mib(supervisor.pid))
        cpu_s = _cpu_s(supervisor.pid)
        time.sleep(idle_s)
        idle_cores = (_cpu_s(supervisor.pid) - cpu_s) / idle_s
    finally:
        supervisor.kill()
        supervisor.wait()
    what, limit = "memory with its watches, at each tenth of the day", record.SUPERVISOR_MIB
    yield record.emit(what, sizes_mib, unit="MiB", last=sizes_mib[-1], most=limit)
    growth = sizes_mib[-1] - sizes_mib[0]
    yield record.emit("growth of memory from the first tenth to the last", [growth], unit="MiB")
    yield record.emit("CPU of a day's events over the day", [cpu_s / DAY_S], unit="cores", events=events)
    yield record.emit("CPU while the trainer is silent, watches included", [idle_cores], unit="cores")
    yield record.emit("CPU in all", [cpu_s / DAY_S + idle_cores], unit="cores")


def _again(run_dir: RunDir, events: int) -> Iterator[dict[str, object]]:
    """From the start of the next supervisor to its first decision, before which it reads the whole day."""
    took_s = []
    for attempt in range(2, READS + 2):
        began_s = time.monotonic()
        supervisor = _supervisor(run_dir, events)
        try:
            while not any(isinstance(one.event, LaunchAsked) and one.event.attempt == attempt for one in _own(run_dir)):
                assert time.monotonic() - began_s < DEADLINE_S, "the supervisor did not restart the run"
                time.sleep(0.01)
            took_s.append(time.monotonic() - began_s)
        finally:
            supervisor.kill()
            supervisor.wait()
    yield record.emit("kill -9 to the next launch, the day's events read", took_s, unit="s", events=events)


def _own(run_dir: RunDir) -> list[Record]:
    """The supervisor's own events; the trainer's file is not read."""
    lines = (run_dir.events / "supervisor.jsonl").read_text("utf-8").splitlines()
    return [record for line in lines if (record := decode(line)) is not None]


def _supervisor(run_dir: RunDir, events: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--supervisor", str(run_dir.path), str(events)])


def _run(run_dir: RunDir, events: int) -> RunSpec:
    return RunSpec(
        run=Run(name=run_dir.path.name, max_steps=events, dir=str(run_dir.path.parent)),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        checkpoint=Checkpoint(interval_steps=events),
    )


def _until(run_dir: RunDir, written: int) -> None:
    path = run_dir.events / "trainer-001-rank0.jsonl"
    marker = run_dir.path / f"written-{written}"
    while not marker.exists():
        assert psutil.pid_exists(os.getpid()), path
        time.sleep(0.2)
    time.sleep(2.0)  # the supervisor reads every half second


def _watchers(pid: int) -> list[psutil.Process]:
    """The supervisor and the child processes of its watches, without the trainer."""
    own = psutil.Process(pid)
    return [own, *(child for child in own.children() if "--trainer" not in child.cmdline())]


def _memory_mib(pid: int) -> float:
    return sum(process.memory_full_info().pss for process in _watchers(pid)) / 2**20


def _cpu_s(pid: int) -> float:
    times = [process.cpu_times() for process in _watchers(pid)]
    return sum(spent.user + spent.system + spent.children_user + spent.children_system for spent in times)


# --- the trainer ------------------------------------------------------------------------------------


def train(run_dir: RunDir, attempt: int, events: int) -> None:
    """Writes a day's events, then waits to be ended."""
    if attempt == 1:
        _write(run_dir, events)
    signal.pause()


def _write(run_dir: RunDir, events: int) -> None:
    writer = "trainer-001-rank0"
    with open(run_dir.events / f"{writer}.jsonl", "a", encoding="utf-8") as file:
        began_s = time.monotonic()
        for number, happened in zip(range(events), _events(events), strict=False):
            file.write(encode(Record(time.time(), writer, number, happened)) + "\n")
            if (number + 1) % (EVENTS_PER_S // 10) == 0:
                file.flush()
                time.sleep(max(0.0, began_s + (number + 1) / EVENTS_PER_S - time.monotonic()))
            if (number + 1) % (events // 10) == 0:
                file.flush()
                (run_dir.path / f"written-{number + 1}").touch()


def _events(events: int) -> Iterator[Event]:
    step = 0
    evaluate, save = max(1, events // EVALUATIONS), max(1, events // SAVES)
    while True:
        step += 1
        yield Progress(1, step, 2.5 + 1 / step, 1e5, step * 8192)
        if step % evaluate == 0:
            yield from (Phase(1, "evaluate"), Evaluated(1, step, 2.4, 100_000), Phase(1, "train"))
        if step % save == 0:
            yield from (CheckpointStarted(1, step), CheckpointSaved(1, step, 10**9, 0.01, 2.0))


if __name__ == "__main__":
    main()
