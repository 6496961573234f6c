"""Finds the file system of a path in /proc/self/mountinfo. Reads only proc."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """`point` is the mount point, `kind` the type as in mount(8): ext4, nfs4, overlay, tmpfs."""

    point: str
    kind: str


def mount_of(path: Path, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """The mount of `path`, which is absolute and without links; None if the table has none.

    Source: proc_pid_mountinfo(5). A later mount on the same point hides an earlier one.
    """
    best: Mount | None = None
    for line in mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, separator, after = line.partition(" - ")
        columns, kinds = before.split(" "), after.split(" ")
        if not separator or len(columns) < 5:
            continue
        point = _unescape(columns[4])
        if path.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point, kinds[0])
    return best


def _unescape(text: str) -> str:
    r"""The table writes a blank as \040, and tabs, newlines and backslashes in the same way."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
