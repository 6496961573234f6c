"""Run as a program: writes the memory and files that a run's processes take, one JSON object to a line.

python host_program.py INTERVAL_S RUN_PATH

The run's processes carry its mark in their environment: see supervise/launch/environment.py.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil

from prime_train.supervise.watches.kernel_log import KilledProcesses
from prime_train.supervise.watches.sample_lines import serve

_MARK = "PRIME_TRAIN_RUN"
_PROC, _CGROUP, _SHM, _KERNEL_LOG = Path("/proc"), Path("/sys/fs/cgroup"), Path("/dev/shm"), Path("/dev/kmsg")
_UNLIMITED_BYTES = 2**60  # in version 1 of control groups, a number near 2**63 means "no limit"
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)
_EXEC_S = 10.0  # between fork and exec a process shows its parent's environment, so a younger one is read again


def main(interval_s: float, run_path: str) -> NoReturn:
    marked: dict[tuple[int, float], bool] = {}
    killed, groups = KilledProcesses(_KERNEL_LOG), list_own_groups()
    serve(lambda: sample(run_path, marked, groups) | {"killed": killed.take()}, interval_s)


def sample(run_path: str, marked: dict[tuple[int, float], bool], groups: list[Path]) -> dict[str, Any]:
    """One moment of machine and run. `marked` remembers which processes belong to the run."""
    memory = psutil.virtual_memory()
    return {
        "stamp_s": time.monotonic(),
        "wall_s": time.time(),
        "memory": _room(memory.available, memory.total),
        "group": find_tightest(groups),
        "shared": measure_shared_memory(),
        "oom_kills": {str(path): count for path, count in count_oom_kills(groups)},
        "processes": list(_list_processes(run_path, marked)),
    }


def _room(free_bytes: int, total_bytes: int) -> dict[str, int]:
    return {"free_bytes": free_bytes, "total_bytes": total_bytes}


def measure_shared_memory(folder: Path = _SHM) -> dict[str, int] | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return _room(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def list_own_groups(proc: Path = _PROC, root: Path = _CGROUP) -> list[Path]:
    """The memory group of this process and the groups above it, innermost first: the run's processes inherit them.

    If the path in /proc belongs to another namespace, only the root of the mount can be read.
    """
    found = []
    for line in _read(proc / "self/cgroup").splitlines():
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


def count_oom_kills(groups: list[Path], proc: Path = _PROC) -> Iterator[tuple[Path, int]]:
    """Each counter of processes that the out-of-memory killer ended: of the machine, and of the control groups."""
    own = (group / name for group in groups for name in ("memory.events", "memory.oom_control"))
    for path in (proc / "vmstat", *own):
        for line in _read(path).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdigit():
                yield path, int(count)


def find_tightest(groups: list[Path]) -> dict[str, int] | None:
    """Free and allowed bytes of the group that is nearest to its limit; reclaimable page cache counts as free."""
    rooms = []
    for group in groups:
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(group / limit_name).strip(), _read(group / used_name).strip()
            if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED_BYTES:
                taken = max(0, int(used) - _read_cached_bytes(group / "memory.stat"))
                rooms.append(_room(max(0, int(limit) - taken), int(limit)))
    return min(rooms, key=lambda found: found["free_bytes"], default=None)


def _read_cached_bytes(stat: Path) -> int:
    found = dict(line.split(" ", 1) for line in _read(stat).splitlines() if " " in line)
    return int(found.get("total_inactive_file", found.get("inactive_file", "0")))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _list_processes(run_path: str, marked: dict[tuple[int, float], bool]) -> Iterator[dict[str, Any]]:
    seen = set()
    for process in psutil.process_iter():
        try:
            key = (process.pid, process.create_time())
            is_marked = marked[key] if key in marked else process.environ().get(_MARK) == run_path
            if is_marked or time.time() - process.create_time() > _EXEC_S:
                marked[key] = is_marked
            if is_marked and (found := _describe(process)) is not None:
                yield found
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
        seen.add(key)
    for key in marked.keys() - seen:
        del marked[key]


def _describe(process: psutil.Process) -> dict[str, Any] | None:
    """None if the process is ending: the kernel counts an out-of-memory kill before the process is gone."""
    folder = _PROC / str(process.pid)
    status = dict(line.split(":", 1) for line in _read(folder / "status").splitlines() if ":" in line)
    if "RssAnon" not in status or int(status.get("SigPnd", "0"), 16) & _SIGKILL_BIT:
        return None
    own_kib = sum(int(status.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmSwap"))
    rank = process.environ().get("RANK", "")
    return {
        "pid": process.pid,
        "parent": process.ppid(),
        "name": process.name(),
        "rank": rank if rank.isdigit() else "",
        "own_bytes": own_kib * 1024,
        "open_files": len(os.listdir(folder / "fd")),
        "open_files_limit": _read_open_files_limit(folder / "limits"),
    }


def _read_open_files_limit(limits: Path) -> int | None:
    for line in _read(limits).splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    return None


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
