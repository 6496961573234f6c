"""Signals one process and no other. The only place that signals a process that is not a child of this one.

Standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from prime_train.core.process_id import Identity, identify


def signal_checked(pid: int, is_right: Callable[[], bool], *numbers: signal.Signals) -> bool:
    """Send the signals if `is_right` holds. Returns whether they were sent. Raises PermissionError.

    `is_right` is called while a pidfd holds the process. A pidfd never refers to a later process with the same pid, so
    what `is_right` finds is still true when the signals are sent.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_right():
            return False
        for number in numbers:
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def signal_identity(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to the process with this pid and this start time. Returns whether it was sent."""
    return signal_checked(identity.pid, lambda: identify(identity.pid) == identity, number)
