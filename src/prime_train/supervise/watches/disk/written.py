"""Finds the file systems to which the processes of a run write, by the files that they have open. Opens none of them.

Nothing else shows where a trainer saves whose layout is not known: its output may be on any disk. A file that is open
between two looks only is not seen, but logs and metrics beside the checkpoints stay open.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MARK = "PRIME_TRAIN_RUN"  # supervise/launch/environment.py
_NO_DISK = ("/dev/", "/proc/", "/sys/", "/memfd:")
_MOST_DISKS = 32


class WrittenFolders:
    """One folder of each file system that was seen, for the lifetime of this value."""

    def __init__(self, run: Path) -> None:
        self._mark = f"{_MARK}={run}".encode()
        self._found: dict[int, Path] = {}  # by device

    def take(self) -> list[Path]:
        """The folders, after another look at the processes; none that is gone or on another disk by now."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for device, folder in self._list_written(Path("/proc", pid)):
                if len(self._found) < _MOST_DISKS:
                    self._found.setdefault(device, folder)
        for device, folder in list(self._found.items()):
            if not _is_on(folder, device):
                del self._found[device]
        return list(self._found.values())

    def _list_written(self, process: Path) -> Iterator[tuple[int, Path]]:
        """Device and folder of each regular file that a process of the run has open for writing."""
        with suppress(OSError):  # it has ended, or belongs to another user
            if self._mark not in (process / "environ").read_bytes().split(b"\0"):
                return
            for number in os.listdir(process / "fd"):
                with suppress(OSError):  # it was closed meanwhile
                    if found := _find_written(process, number):
                        yield found


def _find_written(process: Path, number: str) -> tuple[int, Path] | None:
    opened = process / "fd" / number
    target = opened.readlink()
    if not target.is_absolute() or str(target).startswith(_NO_DISK):
        return None
    flags = next(line for line in (process / "fdinfo" / number).read_text().splitlines() if line.startswith("flags:"))
    if int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY:
        return None
    status = opened.stat()
    return (status.st_dev, target.parent) if stat.S_ISREG(status.st_mode) else None


def _is_on(folder: Path, device: int) -> bool:
    with suppress(OSError):
        return folder.stat().st_dev == device
    return False
