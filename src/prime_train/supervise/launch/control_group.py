"""A control group for each attempt, which holds every process that the attempt starts. Linux only.

A process can leave its session, its tree and its environment, but not its group. Where groups of version 2 cannot be
written, every function does nothing, and the mark in the environment is what is left. Source: kernel docs, cgroup-v2.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import sha256
from itertools import islice
from pathlib import Path

from prime_train.core.process_id import Identity

_MOST_FOLDERS = 20_000  # of the hierarchy, in a search for groups


def create_group(run_path: Path, supervisor: Identity, attempt: int, parent: Path | None = None) -> Path | None:
    """The group of an attempt below the group of this process; None if groups cannot be written or killed here."""
    parent = parent or find_own_group()
    if parent is None:
        return None
    group = parent / f"{_prefix(run_path, supervisor)}{attempt}"
    try:
        group.mkdir(exist_ok=True)
    except OSError:
        return None
    if not os.access(group / "cgroup.kill", os.W_OK) or not os.access(group / "cgroup.procs", os.W_OK):
        remove_group(group)  # cgroup.kill came with Linux 5.14
        return None
    return group


def find_groups(run_path: Path, supervisor: Identity | None = None) -> list[Path]:
    """The groups of a run, or only those of one supervisor, which are below the group of this process."""
    # The name has the hash of the run, so groups of other runs are never killed.
    prefix = _prefix(run_path, supervisor)
    if supervisor is not None:
        parent = find_own_group()
        return sorted(parent.glob(f"{prefix}*")) if parent is not None else []
    root = _find_mount()
    if root is None:
        return []
    # A machine with many containers has thousands of groups, and a start must not wait for all of them.
    folders = islice(os.walk(root), _MOST_FOLDERS)
    return sorted(Path(folder, name) for folder, names, _ in folders for name in names if name.startswith(prefix))


def list_members(group: Path) -> list[int]:
    """The pids in a group; 0 stands for a process of another pid namespace and is left out."""
    try:
        return [pid for pid in map(int, (group / "cgroup.procs").read_text(encoding="ascii").split()) if pid]
    except (OSError, ValueError):
        return []


def kill_group(group: Path) -> None:
    """Send SIGKILL to every process in a group, those that are being forked too."""
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1", encoding="ascii")


def remove_group(group: Path) -> bool:
    """Remove a group. Returns False while a process is in it."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _prefix(run_path: Path, supervisor: Identity | None) -> str:
    run = sha256(os.fsencode(run_path)).hexdigest()[:16]
    owner = f"{supervisor.pid}-{supervisor.start_ticks}-" if supervisor is not None else ""
    return f"prime-train-{run}-{owner}"


def find_own_group(proc: Path = Path("/proc")) -> Path | None:
    """The group of this process in the hierarchy of version 2, if this process may create groups below it."""
    mount = _find_mount(proc)
    if mount is None:
        return None
    lines = _read(proc / "self/cgroup").splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if own is None or ".." in own.split("/"):  # outside of the visible part of the hierarchy
        return None
    folder = mount / own.lstrip("/")
    return folder if os.access(folder, os.W_OK | os.X_OK) and os.access(folder / "cgroup.procs", os.W_OK) else None


def _find_mount(proc: Path = Path("/proc")) -> Path | None:
    """Where the hierarchy of version 2 is mounted. Source: proc_pid_mountinfo(5)."""
    for line in _read(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            return Path(before.split()[4].encode().decode("unicode_escape"))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
