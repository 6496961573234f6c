"""Starts a process beside the supervisor, which outlives the run, and holds its lock: one of a kind for each run."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from prime_train.core.python_child import own_module
from prime_train.core.rundir import RunDir, make_folder, open_private

_MARKS = ("PRIME_TRAIN_RUN", "PRIME_TRAIN_SUPERVISOR")  # by which a supervisor finds the processes that it ends
_POLL_S = 0.5


def start_beside(module: str, run_dir: RunDir, log: Path) -> None:
    """Runs a module, whose `main` begins with `enter_background`. Its output is appended to the log.

    Call it before the supervisor becomes the subreaper of its descendants. Raises OSError.
    """
    make_folder(log.parent)
    variables = {name: value for name, value in os.environ.items() if name not in _MARKS}
    with open(log, "ab", opener=open_private) as output:
        command = own_module(module, str(run_dir.path), "--detach")
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True
        )


def enter_background(description: str | None) -> RunDir | None:
    """The run that the command line names. With --detach in another process, and None in the first one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--detach", action="store_true", help="continue in the background")
    options = parser.parse_args()
    if options.detach and os.fork():
        return None
    return RunDir(options.run_dir.resolve())


@contextlib.contextmanager
def hold_alone(path: Path, longest_s: float) -> Iterator[bool]:
    """Yields whether this is the only process with the lock. Waits for the one of an earlier supervisor to end."""
    make_folder(path.parent)
    with open(path, "ab", opener=open_private) as file:
        give_up_s = time.monotonic() + longest_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    yield False
                    return
                time.sleep(_POLL_S)
            else:
                yield True
                return
