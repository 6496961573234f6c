"""Starts the command line and runs to watch, as processes of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.views.run.status import fold_events
from tests import fork_server

PROGRAM = Path(sys.executable).with_name("prime-train")
DEADLINE_S = 240.0
_OF_A_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ")  # what they change is settled when a process starts


def prime_train(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`prime-train ARGUMENTS` in `cwd`, to its end.

    The first time that a session gives a command, the program is started; after that it is forked, see fork_server.py.
    """
    is_special = any(name.startswith(_OF_A_START) for name in environment.keys() - {"PYTHONPATH"})
    return subprocess.run(
        [*([] if is_special else choose_start(*arguments[:1])), PROGRAM, *arguments],
        cwd=cwd,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def choose_start(command: str = "") -> list[str]:
    """What stands before PROGRAM: nothing the first time that a session gives a command, then what forks it.

    A shell that completes gives no command.
    """
    return [] if fork_server.is_first(command) else [fork_server.interpreter()]


def clean_environment() -> dict[str, str]:
    """This process's environment without what changes the look of the output."""
    hidden = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")
    return {name: value for name, value in os.environ.items() if name not in hidden} | {"COLUMNS": "100"}


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when `holds` does; fail after four minutes."""
    give_up_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up_s, f"not within {DEADLINE_S:g} s"
        time.sleep(0.02)


@contextlib.contextmanager
def supervised(root: Path, name: str, **environment: str) -> Iterator[tuple[RunDir, subprocess.Popen[bytes]]]:
    """A run under `root`/runs that takes steps until it is asked to stop, and its supervisor's process."""
    run_dir = RunDir((root / "runs" / name).resolve())
    script = Path(__file__).with_name("supervised_run.py")
    command = [sys.executable, str(script), str(run_dir.path)]
    process = subprocess.Popen(command, cwd=root, env=os.environ | environment, start_new_session=True)
    try:
        wait_until(lambda: fold_events(run_dir).step > 0)
        yield run_dir, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
