from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.process_id import identify
from prime_train.supervise.watches.hang.activity import (
    Activity,
    ActivityCheck,
    ActivitySample,
    ProcessActivity,
    judge_activity,
)
from prime_train.supervise.watches.hang.silence_limits import SETUP_PHASES
from tests import fakes

DEADLINE_S = 60.0
_HUNG_RANKS = Path(fakes.__file__).with_name("hung_ranks.py")


def process(pid: int = 7, **done: object) -> ProcessActivity:
    values: dict[str, object] = {
        "started_s": 1.0,
        "name": "python",
        "state": "sleeping",
        "cpu_s": 0.0,
        "ended_children_cpu_s": 0.0,
        "read_bytes": 0,
        "written_bytes": 0,
    }
    return ProcessActivity(pid, **(values | done))  # type: ignore[arg-type]


def over(*after: ProcessActivity, phase: str = "train", before: tuple[ProcessActivity, ...] | None = None) -> Activity:
    """The verdict over ten seconds at whose beginning the processes had done nothing."""
    first = tuple(process(found.pid) for found in after) if before is None else before
    return judge_activity(ActivitySample(0.0, first, {}), ActivitySample(10.0, after, {}), phase)


def test_a_rank_that_only_computes_is_idle_in_training_and_busy_in_set_up() -> None:
    spins = process(cpu_s=10.0, state="running")
    told = over(spins)
    assert not told.busy
    assert told.what.startswith("spins on the processor")
    assert "python (7)" in told.what
    for phase in SETUP_PHASES:
        assert over(spins, phase=phase) == Activity("computes (1.0 cores)", True)


def test_a_data_worker_that_computes_is_work() -> None:
    worker = process(8, cpu_s=9.0, worker=True)
    assert over(process(), worker) == Activity("its data workers compute (0.9 cores)", True)


def test_bytes_through_files_are_work_and_a_log_line_is_none() -> None:
    assert over(process(read_bytes=50 * 2**20)) == Activity("reads 5.0 MiB/s from files and pipes", True)
    assert over(process(written_bytes=50 * 2**20)) == Activity("writes 5.0 MiB/s to files and pipes", True)
    assert not over(process(written_bytes=4096)).busy


def test_bytes_over_sockets_are_work_where_they_are_of_its_own_sockets() -> None:
    one = (process(),)
    told = judge_activity(
        ActivitySample(0.0, one, {"11": 5}), ActivitySample(10.0, one, {"11": 5 + 2**23, "12": 2**23}), "train"
    )
    assert told == Activity("moves 1.6 MiB/s over the network", True)
    assert not judge_activity(
        ActivitySample(0.0, one, {"11": 2**40}), ActivitySample(10.0, one, {"11": 2**40}), "train"
    ).busy
    assert not judge_activity(
        ActivitySample(0.0, one, {"11": 2**40}), ActivitySample(10.0, one, {}), "train"
    ).busy  # it was closed


def test_compilers_and_short_programs_are_work() -> None:
    compiles = over(process(), process(9, name="ptxas"), before=(process(),))
    assert compiles == Activity("compiles (ptxas)", True)
    assert over(process(ended_children_cpu_s=6.0)) == Activity("runs short programs (0.6 cores)", True)


def test_a_stopped_process_is_idle_and_named_beside_any_others() -> None:
    told = over(process(7, state="stopped"), process(8, read_bytes=2**30), phase="setup")
    assert told == Activity("stopped by a signal, as SIGSTOP does: python (7)", False)


def test_a_process_that_the_kernel_holds_is_named() -> None:
    told = over(process(7, state="disk-sleep"), process(8, cpu_s=10.0))
    assert not told.busy
    assert "waits in the kernel" in told.what
    assert "python (7)" in told.what


def test_where_no_process_is_left_nothing_is_done() -> None:
    assert judge_activity(ActivitySample(0.0, (process(),), {}), ActivitySample(10.0, (), {}), "setup") == Activity(
        "none of its processes is left", False
    )


def test_a_pid_that_was_used_again_counts_as_another_process() -> None:
    before = (process(7, read_bytes=2**40, started_s=1.0),)
    after = process(7, read_bytes=2**30, started_s=99.0)
    assert over(after, before=before).busy


counters = st.builds(
    process,
    pid=st.integers(1, 5),
    state=st.sampled_from(["running", "sleeping", "disk-sleep", "stopped", "idle"]),
    cpu_s=st.floats(0, 1e5),
    ended_children_cpu_s=st.floats(0, 1e5),
    read_bytes=st.integers(0, 2**50),
    written_bytes=st.integers(0, 2**50),
    worker=st.booleans(),
)


@given(found=st.lists(counters, min_size=1, max_size=6, unique_by=lambda found: found.pid), phase=st.text(max_size=8))
def test_processes_that_do_nothing_are_idle_in_every_phase(found: list[ProcessActivity], phase: str) -> None:
    still = tuple(found)
    told = judge_activity(ActivitySample(0.0, still, {"3": 9}), ActivitySample(5.0, still, {"3": 9}), phase)
    assert not told.busy
    assert told.what


@given(cpu_s=st.lists(st.floats(0, 1e4), min_size=1, max_size=5), stamp_s=st.floats(0.0, 1e4))
def test_no_amount_of_computing_by_ranks_is_work_in_training(cpu_s: list[float], stamp_s: float) -> None:
    after = tuple(process(pid, cpu_s=spent) for pid, spent in enumerate(cpu_s, 1))
    before = tuple(process(pid) for pid in range(1, len(cpu_s) + 1))
    assert not judge_activity(ActivitySample(0.0, before, {}), ActivitySample(stamp_s, after, {}), "train").busy


# --- real processes ---------------------------------------------------------------------------------

DOINGS = {
    "reads": "while True:\n    open(sys.executable, 'rb').read()\n    time.sleep(0.01)",
    "spins": "while True: pass",
    "sleeps": "time.sleep(3600)",
    "talks": (
        "import socket, threading\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "def take():\n    taken, _ = server.accept()\n    while taken.recv(65536): pass\n"
        "threading.Thread(target=take, daemon=True).start()\n"
        "sent = socket.create_connection(server.getsockname())\n"
        "while True:\n    sent.sendall(bytes(65536))\n    time.sleep(0.02)"
    ),
    "forks a worker": "if os.fork() == 0:\n    while True: pass\ntime.sleep(3600)",
    "compiles again and again": (
        "import subprocess\nwhile True: subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"
    ),
}


@contextlib.contextmanager
def doing(code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it begins; it and its children are ended by their pids."""
    text = f"import os, sys, time\nprint('begins', flush=True)\n{code}\n"
    started = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "begins\n"
        yield started
    finally:
        _end(started)


def _end(started: subprocess.Popen[str]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(started.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    started.kill()
    started.communicate()


def verdict(pid: int, phase: str, log: Path) -> Activity:
    root = identify(pid)
    assert root is not None
    check = ActivityCheck((root,), log, window_s=1.0, interval_s=0.2)
    check.begin()
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            told = check.look(phase)
            if told is not None:
                return told
            time.sleep(0.05)
        raise AssertionError(f"no verdict: {log.read_text()}")
    finally:
        check.end()
        assert check.processes() == ()


@pytest.mark.parametrize(
    ("does", "phase", "is_busy", "words"),
    [
        ("reads", "train", True, "reads"),
        ("spins", "train", False, "spins on the processor"),
        ("spins", "setup", True, "computes"),
        ("sleeps", "setup", False, "sleeps: python"),
        ("talks", "train", True, "over the network"),
        ("forks a worker", "train", True, "its data workers compute"),
        ("compiles again and again", "train", True, "runs short programs"),
    ],
)
def test_what_a_real_process_does_is_seen(does: str, phase: str, is_busy: bool, words: str, tmp_path: Path) -> None:
    with doing(DOINGS[does]) as started:
        told = verdict(started.pid, phase, tmp_path / "activity.log")
    assert told.busy is is_busy, told.what
    assert words in told.what


def test_a_process_that_was_stopped_while_it_read_is_named(tmp_path: Path) -> None:
    with doing(DOINGS["reads"]) as started:
        os.kill(started.pid, signal.SIGSTOP)
        told = verdict(started.pid, "train", tmp_path / "activity.log")
    assert not told.busy
    assert "SIGSTOP" in told.what
    assert f"({started.pid})" in told.what


def test_a_process_that_has_ended_is_reported_as_gone(tmp_path: Path) -> None:
    with doing("") as started:
        root = identify(started.pid)
        assert root is not None
        started.wait()
        check = ActivityCheck((root,), tmp_path / "activity.log", window_s=0.2, interval_s=0.1)
        check.begin()
        try:
            told = None
            while told is None:
                told = check.look("train")
                time.sleep(0.02)
        finally:
            check.end()
    assert told == Activity("none of its processes is left", False)


@pytest.mark.parametrize(("how", "words"), [("leaves_out", "sleeps"), ("stopped", "SIGSTOP")])
def test_two_ranks_in_a_collective_that_never_ends_are_idle(how: str, words: str, tmp_path: Path) -> None:
    """Gloo ranks under one launcher: rank 1 leaves a collective out, or is stopped before it."""
    told_by = subprocess.Popen(
        [sys.executable, str(_HUNG_RANKS), str(tmp_path), how], stdout=subprocess.PIPE, text=True
    )
    try:
        assert told_by.stdout is not None
        assert told_by.stdout.readline().startswith("hangs")
        told = verdict(told_by.pid, "train", tmp_path / "activity.log")
    finally:
        _end(told_by)
    assert not told.busy, told.what
    assert words in told.what
