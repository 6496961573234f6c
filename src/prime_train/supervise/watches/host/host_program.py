"""Writes what a run's processes take of their machine, one JSON object to a line. Judges nothing.

python host_program.py INTERVAL_S RUN_PATH

The run's processes are those that carry its mark in their environment: see supervise/launch/environment.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

_MARK = "PRIME_TRAIN_RUN"
_PROC, _CGROUP, _SHM, _KERNEL_LOG = Path("/proc"), Path("/sys/fs/cgroup"), Path("/dev/shm"), Path("/dev/kmsg")
_UNLIMITED_BYTES = 2**60  # version 1 of control groups says "no limit" with a number near 2**63
_EXEC_S = 10.0  # between fork and exec a process shows its parent's environment: what is younger is asked again
_KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\)")  # mm/oom_kill.c


def main() -> None:
    interval_s, run_path = float(sys.argv[1]), sys.argv[2]
    marked: dict[tuple[int, float], bool] = {}
    kernel_log = KernelLog()
    groups = own_groups()
    while True:
        sys.stdout.write(json.dumps(sample(run_path, marked, groups) | {"killed": kernel_log.killed()}) + "\n")
        sys.stdout.flush()
        time.sleep(interval_s)


def sample(run_path: str, marked: dict[tuple[int, float], bool], groups: list[Path]) -> dict[str, Any]:
    """One moment of machine and run. `marked` remembers which processes are the run's."""
    memory = psutil.virtual_memory()
    return {
        "stamp_s": time.monotonic(),
        "wall_s": time.time(),
        "memory": room(memory.available, memory.total),
        "group": tightest(groups),
        "shared": shared_memory(),
        "oom_kills": {str(path): count for path, count in oom_kills(groups)},
        "processes": list(processes(run_path, marked)),
    }


def room(free_bytes: int, total_bytes: int) -> dict[str, int]:
    return {"free_bytes": free_bytes, "total_bytes": total_bytes}


def shared_memory(folder: Path = _SHM) -> dict[str, int] | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return room(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


# --- control groups ---------------------------------------------------------------------------------


def own_groups(proc: Path = _PROC, root: Path = _CGROUP) -> list[Path]:
    """The memory group of this process and those above it, innermost first: the run's processes inherit it.

    Where the path in /proc belongs to another namespace, the mount's root is all there is to look at.
    """
    found = []
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        base = root if not controllers else root / "memory"
        if controllers not in ("", "memory") or not base.is_dir():
            continue
        leaf = base / path.lstrip("/")
        for folder in (leaf, *leaf.parents):
            if folder.is_dir() and (folder / ("memory.events" if not controllers else "memory.oom_control")).exists():
                found.append(folder)
            if folder == base:
                break
    return found


def oom_kills(groups: list[Path], proc: Path = _PROC) -> Iterator[tuple[Path, int]]:
    """Each counter of processes ended by the out-of-memory killer: the machine's, and those of the control groups."""
    for path in (
        proc / "vmstat",
        *(group / name for group in groups for name in ("memory.events", "memory.oom_control")),
    ):
        for line in _text(path).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdigit():
                yield path, int(count)


def tightest(groups: list[Path]) -> dict[str, int] | None:
    """Free and allowed bytes of the group that is nearest to its limit; page cache that can go counts as free."""
    rooms = []
    for group in groups:
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _text(group / limit_name).strip(), _text(group / used_name).strip()
            if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED_BYTES:
                taken = max(0, int(used) - _cached_bytes(group / "memory.stat"))
                rooms.append(room(max(0, int(limit) - taken), int(limit)))
    return min(rooms, key=lambda found: found["free_bytes"], default=None)


def _cached_bytes(stat: Path) -> int:
    found = dict(line.split(" ", 1) for line in _text(stat).splitlines() if " " in line)
    return int(found.get("total_inactive_file", found.get("inactive_file", "0")))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- processes --------------------------------------------------------------------------------------


def processes(run_path: str, marked: dict[tuple[int, float], bool]) -> Iterator[dict[str, Any]]:
    seen = set()
    for process in psutil.process_iter():
        try:
            key = (process.pid, process.create_time())
            is_marked = marked[key] if key in marked else process.environ().get(_MARK) == run_path
            if is_marked or time.time() - process.create_time() > _EXEC_S:
                marked[key] = is_marked
            if is_marked:
                yield _row(process)
        except (psutil.Error, OSError):  # it has ended meanwhile, or is another user's
            continue
        seen.add(key)
    for key in marked.keys() - seen:
        del marked[key]


def _row(process: psutil.Process) -> dict[str, Any]:
    folder = _PROC / str(process.pid)
    status = dict(line.split(":", 1) for line in _text(folder / "status").splitlines() if ":" in line)
    own_kib = sum(int(status.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmSwap"))
    rank = process.environ().get("RANK", "")
    return {
        "pid": process.pid,
        "parent": process.ppid(),
        "name": process.name(),
        "rank": rank if rank.isdigit() else "",
        "own_bytes": own_kib * 1024,
        "open_files": len(os.listdir(folder / "fd")),
        "open_files_limit": _open_files_limit(folder / "limits"),
    }


def _open_files_limit(limits: Path) -> int | None:
    for line in _text(limits).splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    return None


class KernelLog:
    """The kernel's own words on whom it killed, where this process may read them. Pids are those of the machine."""

    def __init__(self, path: Path = _KERNEL_LOG) -> None:
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._close()

    def killed(self) -> list[dict[str, Any]]:
        """Processes killed for memory since the last call."""
        found = []
        while self._fd is not None:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten before they were read: the next read goes on behind them
                continue
            except OSError:
                self._close()
                break
            if not record:
                break
            match = _KILLED.search(record.decode("utf-8", "replace"))
            if match:
                found.append({"pid": int(match[1]), "name": match[2]})
        return found

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


if __name__ == "__main__":
    main()
