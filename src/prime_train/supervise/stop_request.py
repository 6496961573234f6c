"""Asks the supervisor of a run, from another process, to stop it. Starts and waits for nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from queue import SimpleQueue

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import Holder
from prime_train.core.rundir import RunDir
from prime_train.supervise.lock import holder


def request_stop(run_dir: RunDir) -> Holder:
    """Ask for a checkpoint and the end; the supervisor that was asked. Raises UserError where none can be."""
    found = holder(run_dir)
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
        # A pidfd is bound to one process: the check that follows holds until the signal is sent.
        fd = os.pidfd_open(found.identity.pid)
        try:
            if found.identity.alive:
                signal.pidfd_send_signal(fd, signal.SIGTERM)
                signal.pidfd_send_signal(fd, signal.SIGCONT)  # one that Ctrl-Z holds would never hear it
        finally:
            os.close(fd)
    except ProcessLookupError:
        pass  # it ended by itself: what was wanted
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
    """Requests to stop become messages: SimpleQueue.put may be called from a signal handler, Queue.put may not.

    A hang-up that is ignored (nohup) stays ignored.
    """
    names = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        names.append(signal.SIGHUP)
    before = {name: signal.signal(name, lambda number, _: inbox.put(signal.Signals(number))) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
