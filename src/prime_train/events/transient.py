"""Tries a call of the system again after an error that passes by itself. Knows no files."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

# A network file system that lost a handle; no free descriptor, process or memory at this moment; an interruption.
TRANSIENT = frozenset({errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.ENOMEM})
LIMIT_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0


def retry(
    work: Callable[[], Value],
    again: Callable[[OSError], None] = lambda _: None,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Value:
    """The result of `work`, which is called again after a transient error until `limit_s` seconds have passed.

    `again` is called with the error before each repetition. Raises the OSError that does not pass.
    """
    until_s, pause_s = clock() + limit_s, _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno not in TRANSIENT or clock() >= until_s:
                raise
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            again(error)
