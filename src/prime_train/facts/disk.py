"""Reads facts about the file system that a run will be saved on. Deletes every file that it creates."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir
from prime_train.facts.facts import NotKnown
from prime_train.facts.machine import DiskSpeed, SaveDir
from prime_train.facts.probe_process import run_probe, script

SPEED_DEADLINE_S = 30.0


def save_dir(run_dir: Path) -> SaveDir:
    """Space and permissions for a run directory at `run_dir`. Tests writing with a temporary file."""
    path = run_dir.absolute()
    existing = _existing(path)
    if not existing.is_dir():
        return SaveDir(path, existing, 0, 0, f"{existing} is not a folder")
    status = os.statvfs(existing)
    held_bytes = sum(checkpoint.size_bytes for checkpoint in layout.scan(RunDir(path).checkpoints))
    free_bytes = status.f_bavail * status.f_frsize
    return SaveDir(path, existing, free_bytes, held_bytes, _write_error(existing), _file_system(existing))


def measure_speed(run_dir: Path, deadline_s: float = SPEED_DEADLINE_S) -> DiskSpeed | NotKnown:
    """The write speed at the place of the run directory."""
    existing = _existing(run_dir.absolute())
    answer = run_probe([sys.executable, script("disk_program"), str(existing)], deadline_s)
    if isinstance(answer, NotKnown):
        return NotKnown(f"a file in {existing}: {answer.reason}")
    if answer.code != 0:
        return NotKnown(f"a file in {existing}: {answer.last_line}")
    return DiskSpeed(json.loads(answer.out)["bytes_per_s"])


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))


def _file_system(folder: Path) -> str:
    """The kernel's name of the file system type, "" if it is not known."""
    try:
        mount = mount_of(folder.resolve())
    except OSError:
        return ""
    return mount.kind if mount is not None else ""


def _write_error(folder: Path) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".prime-train-") as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


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
