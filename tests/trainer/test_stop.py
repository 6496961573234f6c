"""The loop hears of a stop by file or signal, and an orphan ends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from prime_train.trainer.stop import SUPERVISOR_ENV, StopFlag, start_ticks, watch_supervisor
from tests.trainer import tiny


def test_a_file_asks(tmp_path: Path) -> None:
    flag = StopFlag(tmp_path / "stop_requested")
    assert not flag.asked()
    (tmp_path / "stop_requested").touch()
    assert flag.asked()


def test_a_signal_asks(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            flag = StopFlag(tmp_path / "stop_requested")
            flag.listen()
            assert not flag.asked()
            os.kill(os.getpid(), number)
            assert flag.asked()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_process_is_known_by_its_start() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = start_ticks(process.pid)
    assert ticks is not None
    assert start_ticks(process.pid) == ticks
    process.kill()
    tiny.until(lambda: start_ticks(process.pid) is None)  # a zombie counts as gone
    process.communicate()
    assert start_ticks(process.pid) is None


def test_without_a_supervisor_there_is_no_watch() -> None:
    assert SUPERVISOR_ENV not in os.environ
    watch_supervisor()


def test_an_orphan_ends_though_its_main_thread_hangs() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    program = (
        "import signal; from prime_train.trainer.stop import watch_supervisor; watch_supervisor(); "
        "print('watching', flush=True); signal.pause()"
    )
    orphan = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {SUPERVISOR_ENV: f"{supervisor.pid}:{start_ticks(supervisor.pid)}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert orphan.stdout is not None
    assert orphan.stdout.readline() == "watching\n"
    assert orphan.poll() is None
    supervisor.kill()
    supervisor.communicate()
    _, told = orphan.communicate(timeout=tiny.DEADLINE_S)
    assert orphan.returncode == 1
    assert "the supervisor is gone" in told
