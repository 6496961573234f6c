"""Reads which file system a path lies on from /proc/self/mountinfo. Touches no file system but proc."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """`point` is where it hangs in the tree, `kind` what mount(8) calls a type: ext4, nfs4, overlay, tmpfs."""

    point: str
    kind: str


def mount_of(path: Path, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """The mount that `path`, absolute and without links, lies on; None where the table names none.

    Source: proc_pid_mountinfo(5). Of two mounts on one point the later one hides the earlier.
    """
    best: Mount | None = None
    for line in mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, separator, after = line.partition(" - ")
        columns, kinds = before.split(" "), after.split(" ")
        if not separator or len(columns) < 5:
            continue
        point = _unescaped(columns[4])
        if path.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point, kinds[0])
    return best


def _unescaped(text: str) -> str:
    r"""Blanks, tabs, newlines and backslashes stand there as \040 and the like."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
