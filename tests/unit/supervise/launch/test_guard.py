"""The guard as a process: it hands on signals and exit codes, and leaves nothing behind when its supervisor dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from prime_train.supervise.launch import environment, guard

GUARD = (sys.executable, "-I", "-S", guard.__file__)
DEADLINE_S = 30.0


def guarded(*command: str) -> subprocess.Popen[str]:
    marked = os.environ | {environment.SUPERVISOR: f"{os.getpid()}:0"}
    return subprocess.Popen([*GUARD, *command], env=marked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("program", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", -signal.SIGKILL), ("kill -SEGV $$", -signal.SIGSEGV)],
)
def test_it_ends_as_the_launcher_does(program: str, code: int) -> None:
    with guarded("sh", "-c", program) as guard:
        assert guard.wait(DEADLINE_S) == code


def test_a_launcher_that_is_missing_is_reported_as_a_shell_reports_it() -> None:
    with guarded("/nowhere/rl") as guard:
        _, told = guard.communicate(timeout=DEADLINE_S)
    assert guard.returncode == 127
    assert told == "/nowhere/rl: No such file or directory\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_end_go_to_the_launcher_alone(number: signal.Signals) -> None:
    program = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGTERM, signal.SIGINT])\n"
        "print('told', flush=True)\n"
        "sys.exit(3)\n"
    )
    with guarded(sys.executable, "-c", program) as guard:
        assert guard.stdout is not None
        assert guard.stdout.readline() == "ready\n"
        guard.send_signal(number)
        assert guard.stdout.read() == "told\n"
        assert guard.wait(DEADLINE_S) == 3


def test_a_signal_after_the_end_of_the_launcher_is_no_error() -> None:
    program = (
        "import os, signal\n"
        "from prime_train.supervise.launch import guard\n"
        "os.waitpid(guard.start(['true']), 0)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_its_supervisor_it_starts_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    marked = os.environ | {environment.SUPERVISOR: "1:0"}
    assert subprocess.run([*GUARD, "touch", str(made)], env=marked, check=False).returncode == 1
    assert not made.exists()


def test_with_its_supervisor_all_end_orphans_too(tmp_path: Path) -> None:
    """A supervisor that is killed; its launcher, a child of that, and one that has left tree and session."""
    launcher = tmp_path / "launcher.sh"
    launcher.write_text(f"sleep 61 & setsid sh -c 'sleep 62 & echo $! > {tmp_path}/orphan' & sleep 63\n")
    program = (
        "import os, subprocess, sys\n"
        f"marked = os.environ | {{{environment.SUPERVISOR!r}: f'{{os.getpid()}}:0'}}\n"
        f"print(subprocess.Popen([*{GUARD!r}, 'sh', {str(launcher)!r}], env=marked).pid, flush=True)\n"
        "import time; time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        guard = psutil.Process(int(supervisor.stdout.readline()))
        wait_until(lambda: (tmp_path / "orphan").exists() and len(guard.children(recursive=True)) >= 4)
        below = guard.children(recursive=True)
        assert any(process.name() == "sleep" for process in below)
        supervisor.kill()
    wait_until(lambda: not any(alive(process) for process in (guard, *below)))


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
