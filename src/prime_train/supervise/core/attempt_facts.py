"""Reads what the log, the disk and the kernel hold of an attempt that has ended. Judges nothing."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from prime_train.core import outside
from prime_train.supervise.watches.host.host_program import count_oom_kills as count_by_group
from prime_train.supervise.watches.host.host_program import list_own_groups

_TAIL_BYTES = 256 * 1024
_DISK_LIMIT_S = 1.0
_LEAST_FREE_BYTES = 64 * 1024  # file systems reserve the last blocks, some for root


def read_tail(log: Path) -> str:
    """The end of a log; empty if the log does not exist or cannot be read."""
    try:
        with outside.open_regular(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def is_disk_full(folder: Path) -> bool:
    """Whether no file fits on the disk any more. False if the disk does not answer within a second.

    A thread makes the call, because a dead disk may block its caller for ever.
    """
    free_bytes: list[int] = []

    def measure() -> None:
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            free_bytes.append(found.f_bavail * found.f_frsize)

    thread = threading.Thread(target=measure, name="disk-full", daemon=True)
    thread.start()
    thread.join(_DISK_LIMIT_S)
    return bool(free_bytes) and free_bytes[0] < _LEAST_FREE_BYTES


def count_oom_kills() -> int:
    """Processes that the kernel's out-of-memory killer ended in this control group; without one, on the machine.

    Kills elsewhere on the machine do not concern this run. A group of version 1 does not count the groups below it.
    """
    own = list_own_groups()[:1]
    below = [path.parent for group in own for path in group.glob("*/**/memory.oom_control")]
    counted = dict(count_by_group([*own, *below]))
    machine = counted.pop(Path("/proc/vmstat"), 0)
    return sum(counted.values()) if counted else machine
