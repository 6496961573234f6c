"""Names what keeps a file from being written: no space, no inode, a quota, a read-only mount. Writes nothing.

The kernel has one error for a disk without space and one without inodes; only the counts of the disk distinguish them.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

# These errors end a run, because its events and checkpoints cannot be written.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


class DiskProblem(NamedTuple):
    """Three parts of a message; the caller adds where."""

    what: str
    why: str
    fix: str


def explain_disk_error(number: int, folder: str | os.PathLike[str]) -> DiskProblem:
    """What an error of a write in `folder` means and what to do. `number`: an errno; others get their own text."""
    place = os.fspath(folder)
    match number:
        case errno.ENOSPC if _lacks_inodes(place):
            return DiskProblem(
                "the disk has no inodes left, so no file can be created",
                "each file takes an inode, and many small files use them up while bytes are still free",
                f"delete small files: `df -i {place}`, `du --inodes -xd2 {place} | sort -n | tail`",
            )
        case errno.ENOSPC:
            return DiskProblem(
                "the disk has no space left",
                "checkpoints, logs and other programs share it",
                f"free space: `df -h {place}`; `prime-train ckpt prune RUN --dry-run` shows what a run may delete",
            )
        case errno.EDQUOT:
            return DiskProblem(
                "the disk quota is used up",
                "the quota of the user, group or project ends before the disk is full, and df does not show it",
                "see `quota -s` (or `lfs quota`, `xfs_quota`): delete files that count, or ask for more",
            )
        case errno.EROFS:
            return DiskProblem(
                "the file system is read-only",
                "it was mounted so, or the kernel made it so after an error of the disk",
                f"see `findmnt -T {place}` and `dmesg | tail`; deleting files does not help",
            )
        case errno.EFBIG:
            return DiskProblem(
                "a file may not become larger",
                "a limit of the shell or of the file system ends it, and not the space on the disk",
                "see `ulimit -f` and the largest file that this file system holds",
            )
        case errno.EIO:
            return DiskProblem(
                "the disk reports an input/output error",
                "the disk, its cable or its server fails",
                "see `dmesg | tail`; copy the run to another disk before it is used again",
            )
        case errno.EACCES | errno.EPERM:
            return DiskProblem(
                f"it may not be written: {os.strerror(number)}",
                "it belongs to another user, or its mode forbids it",
                f"see `ls -ld {place}` and `id`; chown or chmod it, or choose another place",
            )
        case _:
            return DiskProblem(
                f"it cannot be written: {os.strerror(number) if number else 'the reason is not known'}",
                "the system refused the write",
                f"see `df -h {place}` and `dmesg | tail`",
            )


def _lacks_inodes(place: str) -> bool:
    """Whether the file system counts its inodes and has none left for this user."""
    while not os.path.exists(place) and os.path.dirname(place) != place:  # noqa: PTH110, PTH120 - a text
        place = os.path.dirname(place)  # noqa: PTH120
    try:
        status = os.statvfs(place)
    except OSError:
        return False
    return status.f_files > 0 and status.f_favail == 0
