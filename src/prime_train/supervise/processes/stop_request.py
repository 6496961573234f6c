"""Sends stop requests to the supervisor of a run, and receives them there. Starts nothing and waits for nothing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from queue import SimpleQueue

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import Holder
from prime_train.core.process_signal import signal_checked
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import find_holder

# SIGUSR1 and SIGUSR2 are the notices of schedulers (sbatch --signal), SIGXCPU that of a limit on CPU time. The default
# action of each would end this process without a save.
STOP_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
)


def request_stop(run_dir: RunDir) -> Holder:
    """Request a checkpoint and the end of the run. Returns the supervisor. Raises UserError if that is not possible."""
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
        signal_checked(
            found.identity.pid,
            lambda: find_holder(run_dir) == found,
            signal.SIGTERM,
            signal.SIGCONT,  # a process that Ctrl-Z stopped does not handle signals
        )
    except PermissionError:
        raise UserError(
            what=f"process {found.identity.pid} belongs to another user",
            where=str(run_dir.lock),
            why="only its owner may signal it",
            fix=f"sudo kill -TERM {found.identity.pid}",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from None
    return found


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
