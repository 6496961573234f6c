"""Measures what supervision costs and how fast it recovers.

    python bench/supervision.py [--seconds 20] [--kills 7]

A fake trainer emits events at the real trainer's rate (a few Progress a second, a checkpoint now and then)
under the real supervisor with plain-line output. CPU time is the supervisor process's own, from /proc;
the time to recover is from the trainer's SIGKILL to the next attempt's ChildStarted, the back-off of the
default policy (1 s at first) left in.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import record

from prime_train.backends.launch import Launch
from prime_train.events import ChildStarted, Record, read
from prime_train.rundir import RunDir
from prime_train.spec import Checkpoint, Data, Restart, Run, RunSpec, Source
from prime_train.supervise.fold import fold_all
from prime_train.supervise.lock import held
from prime_train.supervise.loop import supervise
from prime_train.supervise.state import State
from prime_train.views.console import shown

FAKE_TRAINER = Path(__file__).resolve().parents[1] / "tests" / "fakes" / "trainer.py"
STEP_S = 0.25  # Progress is written at most a few times a second
FAST_STEP_S = 0.02  # where only the way to the next checkpoint is waited for
SAVE_EVERY = 20
WARM_UP_S = 2.0
WINDOW_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch the supervisor")
    parser.add_argument("--kills", type=int, default=7, help="how often to kill the trainer")
    parser.add_argument(
        "--supervise", type=Path, help=argparse.SUPPRESS
    )  # what this program runs as the supervised one
    parser.add_argument("--step-s", type=float, default=STEP_S, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.supervise:
        sys.exit(_supervise(RunDir(given.supervise), given.step_s))
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            *_cost(RunDir(Path(folder) / "cost"), given.seconds),
            _recovery(RunDir(Path(folder) / "kill"), given.kills),
        ]
    record.write("supervision", rows)


def _supervise(run_dir: RunDir, step_s: float) -> int:
    """The supervisor as `prime-train run` has it, on a trainer that trains nothing."""
    run = RunSpec(
        run=Run(name=run_dir.path.name, max_steps=10**6, dir=str(run_dir.path.parent)),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        checkpoint=Checkpoint(interval_steps=SAVE_EVERY),
    )
    with held(run_dir), shown(sys.stderr) as show:
        return supervise(run, run_dir, show, partial(_plan, step_s=step_s))


def _plan(run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int, *, step_s: float) -> Launch:
    options = (f"max_steps={run.run.max_steps}", f"step_s={step_s}", f"save_every={SAVE_EVERY}")
    program = (sys.executable, str(FAKE_TRAINER), str(run_dir.path), str(attempt), str(resume_step), "finish", *options)
    return Launch("trainer", program, Path.cwd(), run_dir.log(attempt, "trainer"))


def _start(run_dir: RunDir, step_s: float) -> subprocess.Popen[bytes]:
    program = [sys.executable, __file__, "--supervise", str(run_dir.path), "--step-s", str(step_s)]
    return subprocess.Popen(program, stderr=subprocess.DEVNULL)


def _until(run_dir: RunDir, holds: Callable[[State], bool], deadline_s: float = 60.0) -> State:
    give_up_s = time.monotonic() + deadline_s
    while time.monotonic() < give_up_s:
        state = fold_all(read(run_dir.events))
        if holds(state):
            return state
        time.sleep(0.05)
    raise TimeoutError(f"not within {deadline_s} s")


def _steps(attempt: int, state: State) -> bool:
    return state.attempt_number == attempt and state.live is not None and state.live.first_progress is not None


def _has_saved(attempt: int, state: State) -> bool:
    """It has made progress, so that its end is followed by the shortest back-off."""
    return _steps(attempt, state) and state.newest_complete > state.attempts[-1].resume_step


def _cost(run_dir: RunDir, seconds: float) -> list[dict[str, object]]:
    """Part of a core that the supervisor takes while the trainer trains, window by window; its memory."""
    process = _start(run_dir, STEP_S)
    try:
        _until(run_dir, partial(_steps, 1))
        time.sleep(WARM_UP_S)
        watched = psutil.Process(process.pid)
        cores: list[float] = []
        spent_s, at_s = _cpu_s(watched), time.monotonic()
        for _ in range(max(1, round(seconds / WINDOW_S))):
            time.sleep(WINDOW_S)
            spent, now_s = _cpu_s(watched), time.monotonic()
            cores.append((spent - spent_s) / (now_s - at_s))
            spent_s, at_s = spent, now_s
        rss_mib = watched.memory_info().rss / 2**20
    finally:
        process.terminate()
        process.wait()
    part = record.emit("supervisor CPU while training", cores, unit="cores", mean=round(sum(cores) / len(cores), 6))
    return [part, record.emit("supervisor memory", [round(rss_mib, 1)], unit="MiB")]


def _cpu_s(process: psutil.Process) -> float:
    """Time on a core in seconds, over all threads. schedstat counts nanoseconds, /proc/PID/stat only 10 ms ticks."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


def _recovery(run_dir: RunDir, kills: int) -> dict[str, object]:
    """Seconds from the death of a trainer to the start of the next."""
    process = _start(run_dir, FAST_STEP_S)
    samples: list[float] = []
    try:
        for attempt in range(1, kills + 1):
            state = _until(run_dir, partial(_has_saved, attempt))
            assert state.live is not None
            killed_s = time.time()
            os.kill(state.live.children[0].pid, signal.SIGKILL)
            _until(run_dir, partial(_steps, attempt + 1))
            samples.append(_started_s(read(run_dir.events), attempt + 1) - killed_s)
    finally:
        process.terminate()
        process.wait()
    return record.emit("kill -9 of the trainer to the next attempt's start", samples, back_off_s=Restart().backoff_s)


def _started_s(records: list[Record], attempt: int) -> float:
    return next(r.time_s for r in records if isinstance(r.event, ChildStarted) and r.event.attempt == attempt)


if __name__ == "__main__":
    main()
