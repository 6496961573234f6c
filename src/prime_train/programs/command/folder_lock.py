"""Holds the folder of a trainer's checkpoints for one supervisor of this machine. Writes nothing into it.

Two runs in one folder resume from each other's checkpoints and delete them. The lock is that of the folder itself
(flock), which the kernel releases with its holder. On a file system without such locks no run is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_held: dict[Path, int] = {}  # for the rest of this process


def hold_folder(folder: Path) -> bool:
    """Whether no other process holds the folder. One that does not exist is free."""
    if folder in _held:
        return True
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    _held[folder] = descriptor
    return True
