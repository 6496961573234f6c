"""The errors that a user can fix, the exit codes of the command line, and what keeps a file from being written.

The kernel has one error for a disk without space and one without inodes; only the counts of the disk distinguish them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

# These errors end a run, because its events and checkpoints cannot be written.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


class ExitCode(IntEnum):
    """The exit codes of the command line and the trainer. Documented in docs/exit-codes.md."""

    OK = 0
    FINDINGS = 1  # a config or a preflight check has findings at error level
    USAGE = 2  # wrong command line: a missing file, an unknown run, a busy run
    BUG = 3  # a bug in prime-train
    OUT_OF_REACH = 4  # a needed fact or service is not available
    RUN_FAILED = 5  # the run failed, and another attempt would fail in the same way
    RETRIES_SPENT = 6  # the run failed, and no attempt without progress is left
    RESUMABLE = 75  # stopped without losing progress: the same command continues the run


class UserError(Exception):
    """A failure with a cause outside of prime-train, in four parts: where, what, why, fix.

    `document` holds what is known so far, which a command with --json prints together with the error.
    """

    def __init__(self, what: str, where: str, why: str, fix: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(what, where, why, fix, exit_code)
        self.document: Mapping[str, Any] = {"version": 1}
        self.what, self.where, self.why, self.fix, self.exit_code = what, where, why, fix, exit_code

    def parts(self) -> dict[str, Any]:
        """The arguments of an equal error, for JSON and for another process."""
        return {"what": self.what, "where": self.where, "why": self.why, "fix": self.fix, "exit_code": self.exit_code}

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.why}); {self.fix}"


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
            why = "each file takes an inode, and many small files use them up while bytes are still free"
            fix = f"delete small files: `df -i {place}`, `du --inodes -xd2 {place} | sort -n | tail`"
            return DiskProblem("the disk has no inodes left, so no file can be created", why, fix)
        case errno.ENOSPC:
            fix = f"free space: `df -h {place}`; `prime-train ckpt prune RUN --dry-run` shows what a run may delete"
            return DiskProblem("the disk has no space left", "checkpoints, logs and other programs share it", fix)
        case errno.EDQUOT:
            why = "the quota of the user, group or project ends before the disk is full, and df does not show it"
            fix = "see `quota -s` (or `lfs quota`, `xfs_quota`): delete files that count, or ask for more"
            return DiskProblem("the disk quota is used up", why, fix)
        case errno.EROFS:
            why = "it was mounted so, or the kernel made it so after an error of the disk"
            fix = f"see `findmnt -T {place}` and `dmesg | tail`; deleting files does not help"
            return DiskProblem("the file system is read-only", why, fix)
        case errno.EFBIG:
            why = "a limit of the shell or of the file system ends it, and not the space on the disk"
            fix = "see `ulimit -f` and the largest file that this file system holds"
            return DiskProblem("a file may not become larger", why, fix)
        case errno.EIO:
            fix = "see `dmesg | tail`; copy the run to another disk before it is used again"
            return DiskProblem("the disk reports an input/output error", "the disk, its cable or its server fails", fix)
        case errno.EACCES | errno.EPERM:
            why = "it belongs to another user, or its mode forbids it"
            fix = f"see `ls -ld {place}` and `id`; chown or chmod it, or choose another place"
            return DiskProblem(f"it may not be written: {os.strerror(number)}", why, fix)
        case _:
            what = f"it cannot be written: {os.strerror(number) if number else 'the reason is not known'}"
            return DiskProblem(what, "the system refused the write", f"see `df -h {place}` and `dmesg | tail`")


def _lacks_inodes(place: str) -> bool:
    """Whether the file system counts its inodes and has none left for this user."""
    while not os.path.exists(place) and os.path.dirname(place) != place:  # noqa: PTH110, PTH120 - a text
        place = os.path.dirname(place)  # noqa: PTH120
    try:
        status = os.statvfs(place)
    except OSError:
        return False
    return status.f_files > 0 and status.f_favail == 0
