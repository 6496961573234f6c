"""Turns the signals by which a person or a scheduler asks a run to stop into messages for the supervisor's loop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from queue import SimpleQueue


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
