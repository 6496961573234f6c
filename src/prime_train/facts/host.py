"""Reads the limits of this process: open files, cores, CPU features, memory, clock. Changes no limit."""

from __future__ import annotations

import math
import os
import resource
import time
from pathlib import Path

from prime_train.facts.machine import Cpu, MachineClock, OpenFiles, Ram, Shm

CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")
SHM = Path("/dev/shm")
_BF16_FLAGS = ("amx_bf16", "avx512_bf16")  # the instruction sets that oneDNN uses for bf16 products on x86
_UNLIMITED_BYTES = 2**60  # in cgroup v1 a number near 2**63 means "no limit"


def open_files() -> OpenFiles:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(soft, None if hard == resource.RLIM_INFINITY else hard)


def cpu(cpuinfo: Path = CPUINFO, cgroup: Path = CGROUP) -> Cpu:
    return Cpu(count_usable_cores(cgroup), _bf16_instruction(cpuinfo))


def count_usable_cores(cgroup: Path = CGROUP) -> int:
    """The cores in the affinity of this process, at most the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, _quota_cores(cgroup) or cores)


def read_throttled_s(cgroup: Path = CGROUP) -> float:
    """Seconds for which the CPU limit of the control group has stopped its processes; 0.0 without a limit.

    Source: kernel docs, cgroup-v2, cpu.stat throttled_usec.
    """
    try:
        fields = dict(line.split(maxsplit=1) for line in (cgroup / "cpu.stat").read_text().splitlines())
        return int(fields.get("throttled_usec", 0)) / 1e6
    except (OSError, ValueError):
        return 0.0


def ram(cgroup: Path = CGROUP) -> Ram:
    import psutil

    memory = psutil.virtual_memory()
    limit, used = _memory_limit(cgroup)
    if limit is None or limit >= memory.total:
        return Ram(memory.total, memory.available)
    return Ram(limit, max(0, min(memory.available, limit - used)))


def shm(folder: Path = SHM) -> Shm:
    status = os.statvfs(folder)
    return Shm(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def clock(witness: Path = Path(__file__)) -> MachineClock:
    """The time, and the time of installation of this package: an earlier clock is wrong."""
    return MachineClock(time.time(), witness.stat().st_mtime, str(witness))


def _bf16_instruction(cpuinfo: Path) -> str:
    with open(cpuinfo, encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags = set(value.split())
                return next((flag for flag in _BF16_FLAGS if flag in flags), "")
    return ""


def _quota_cores(cgroup: Path) -> int | None:
    """The cores in the CPU quota of the control group, at least 1. Source: kernel docs, cgroup-v2, cpu.max."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = _read(cgroup / "cpu/cpu.cfs_quota_us"), _read(cgroup / "cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return max(1, math.ceil(int(quota) / int(period)))
    return None


def _memory_limit(cgroup: Path) -> tuple[int | None, int]:
    """(limit, used) of the control group in bytes; page cache counts as free. None: no limit."""
    for limit_file, used_file, stat_file in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, used = _read(cgroup / limit_file), _read(cgroup / used_file)
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED_BYTES:
            return int(limit), max(0, int(used) - _inactive_file_bytes(cgroup / stat_file))
    return None, 0


def _inactive_file_bytes(stat: Path) -> int:
    for line in _read(stat).splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
