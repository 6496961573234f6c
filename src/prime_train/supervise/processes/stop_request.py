"""Requests a stop from the supervisor of a run, by file or signal, and receives the signals there. Starts nothing."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import Holder, signal_checked
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import find_holder
from prime_train.supervise.processes.requests import STOP_REQUESTED, write_request

# SIGUSR1 and SIGUSR2 are the notices of schedulers (sbatch --signal), SIGXCPU that of a limit on CPU time. The default
# action of each would end this process without a save.
STOP_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
)


ANSWER_S = 5.0  # a supervisor looks for requests about twice per second
_POLL_S = 0.05


def request_stop(run_dir: RunDir, attempt: int = 0) -> Holder:
    """Request a checkpoint and the end of the run. Returns the supervisor. Raises UserError if that is not possible.

    `attempt`: the newest one; 0 if there is none. A supervisor without a folder of requests, or one that reads none
    within `ANSWER_S`, gets SIGTERM.
    """
    found = find_holder(run_dir)
    if found is None:
        raise UserError(
            what="no supervisor runs it",
            where=str(run_dir.path),
            why="only a run that is supervised can be stopped",
            fix=f"look at it with `prime-train status {run_dir.path.name}`",
        )
    if not found.here:
        raise UserError(
            what=f"its supervisor is process {found.identity.pid} on {found.host}",
            where=str(run_dir.lock),
            why="a signal does not reach another machine",
            fix=f"ssh {found.host} kill -TERM {found.identity.pid}",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    try:
        if not _request_by_file(run_dir, attempt, found):
            _signal(run_dir, found, signal.SIGTERM, signal.SIGCONT)
    except PermissionError:
        raise UserError(
            what=f"process {found.identity.pid} belongs to another user",
            where=str(run_dir.lock),
            why="only its owner may signal it",
            fix=f"sudo kill -TERM {found.identity.pid}",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from None
    return found


def _request_by_file(run_dir: RunDir, attempt: int, holder: Holder) -> bool:
    """Whether the supervisor has read a request. Raises PermissionError if it belongs to another user."""
    folder = run_dir.requests(attempt)
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        request = write_request(folder, STOP_REQUESTED, holder.identity)
    except OSError:
        return False
    try:
        _signal(run_dir, holder, signal.SIGCONT)
        until_s = time.monotonic() + ANSWER_S
        while request.exists() and holder.identity.alive and time.monotonic() < until_s:
            time.sleep(_POLL_S)
    finally:
        is_read = not _withdraw(request)
    return is_read


def _withdraw(request: Path) -> bool:
    """Remove a request, so that no later supervisor finds it. Returns whether it was still there."""
    try:
        request.unlink()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


def _signal(run_dir: RunDir, holder: Holder, *numbers: signal.Signals) -> None:
    """Signal the supervisor if it still holds the run. SIGCONT wakes a process that Ctrl-Z stopped, which reads no file
    and handles no other signal."""
    signal_checked(holder.identity.pid, lambda: find_holder(run_dir) == holder, *numbers)


@contextlib.contextmanager
def signals_into(inbox: SimpleQueue[object]) -> Iterator[None]:
    """Put the signals that request a stop into the inbox. A signal handler may call SimpleQueue.put, but not Queue.put.

    A signal that was ignored before stays ignored (SIGHUP under nohup), except SIGINT and SIGTERM.
    """
    always = (signal.SIGINT, signal.SIGTERM)
    names = [one for one in STOP_SIGNALS if one in always or signal.getsignal(one) is not signal.SIG_IGN]
    before = {name: signal.signal(name, lambda number, _: inbox.put(signal.Signals(number))) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
