"""Reads what this process may use: open files, cores, memory, clock, disk, GPUs. Parses --gpus for another machine.

Changes no limit, and deletes every file that it creates. GPUs are read from NVML in a child with a deadline.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.machine_secret import find_launcher, find_weakness
from prime_train.core.machines import SECRET, find_machines
from prime_train.core.rundir import RunDir
from prime_train.core.units import GIB
from prime_train.facts.facts import NotKnown
from prime_train.facts.machine import (
    Cpu,
    DiskSpeed,
    Gpu,
    GpuUser,
    MachineClock,
    MachineLink,
    OpenFiles,
    Ram,
    SaveDir,
    Shm,
    VisibleGpus,
)
from prime_train.facts.probe_process import NoAnswer, read_answer, run_probe, script
from prime_train.registry import gpus as gpu_registry

NVML_DEADLINE_S = 10.0  # eight GPUs without persistence mode need some seconds to start
SPEED_DEADLINE_S = 30.0
MOUNTINFO = Path("/proc/self/mountinfo")
CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")
SHM = Path("/dev/shm")
_BF16_FLAGS = ("amx_bf16", "avx512_bf16")  # the instruction sets that oneDNN uses for bf16 products on x86
_UNLIMITED_BYTES = 2**60  # in cgroup v1 a number near 2**63 means "no limit"


def gpus(deadline_s: float = NVML_DEADLINE_S) -> VisibleGpus | NotKnown:
    """The visible GPUs. On a machine without a driver there are none, with the reason."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return VisibleGpus((), "CUDA_VISIBLE_DEVICES hides them")
    output = read_answer("NVML: its child", [sys.executable, script("nvml_program")], deadline_s)
    if isinstance(output, NoAnswer):
        return NotKnown(f"NVML: {output.reason}; the driver may be stuck, see `dmesg`")
    if isinstance(output, NotKnown):
        return output
    if "unknown" in output:
        return NotKnown(output["unknown"])
    if "none" in output:
        return VisibleGpus((), output["none"])
    found = [_gpu(device) for device in output["devices"]]
    kept = visible_indices(visible, [device.get("uuid", "") for device in output["devices"]])
    return VisibleGpus(
        tuple(found[index] for index in kept),
        "" if kept else "NVML lists none",
        driver=output["driver"],
        driver_cuda=divmod(output["driver_cuda"] // 10, 100) if output["driver_cuda"] else None,  # 12080 is 12.8
    )


def list_uuids(deadline_s: float = NVML_DEADLINE_S) -> tuple[str, ...]:
    """The UUIDs of the GPUs of this machine; empty where the driver does not report them."""
    output = read_answer("NVML: its child", [sys.executable, script("nvml_program")], deadline_s)
    devices = output.get("devices", []) if isinstance(output, dict) else []
    return tuple(device["uuid"] for device in devices if device.get("uuid"))


def _gpu(device: dict[str, Any]) -> Gpu:
    if "fault" in device:
        return Gpu("", 0, (0, 0), fault=device["fault"])
    major, minor = device["compute_capability"]
    users = tuple(GpuUser(**user) for user in device["users"])
    return Gpu(device["name"], device["memory_bytes"], (major, minor), device["used_bytes"], users)


def visible_indices(variable: str | None, uuids: list[str]) -> list[int]:
    """The indices in CUDA_VISIBLE_DEVICES. As in CUDA, the first invalid entry ends the list.

    Source: CUDA C++ programming guide, environment variables.
    """
    if variable is None:
        return list(range(len(uuids)))
    kept: list[int] = []
    for entry in variable.split(","):
        name = entry.strip()
        if name.isdigit() and int(name) < len(uuids):
            kept.append(int(name))
        elif not name.isdigit() and any(uuid.startswith(name) for uuid in uuids if name):
            kept.append(next(index for index, uuid in enumerate(uuids) if uuid.startswith(name)))
        else:
            break
    return kept


def parse_gpus(text: str) -> VisibleGpus:
    """The GPUs of "8xh100-80gb" or "h200" (one GPU), with all memory free. Raises UserError."""
    known = {gpu.id: gpu for gpu in gpu_registry.gpu_peaks() if gpu.compute_capability is not None}
    plain = {gpu_id.replace("-", ""): gpu for gpu_id, gpu in known.items()}  # "rtx4090" means "rtx-4090"
    match = re.fullmatch(r"(?:(\d{1,5})x)?([a-z0-9-]+)", text.lower())
    gpu = known.get(match[2]) or plain.get(match[2].replace("-", "")) if match else None
    if match is None or gpu is None or gpu.compute_capability is None or match[1] == "0":
        raise UserError(
            what=f"{text!r} names no GPUs",
            where="--gpus",
            why="the form is COUNTxGPU, and the known GPUs are " + ", ".join(sorted(known)),
            fix="--gpus 8xh100-80gb",
        )
    memory_bytes = round(gpu.usable_gib * GIB) if gpu.usable_gib is not None else round(gpu.memory_gb * 1e9)
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    return VisibleGpus((Gpu(gpu.name, memory_bytes, (major, minor)),) * int(match[1] or 1))


def save_dir(run_dir: Path) -> SaveDir:
    """Space and permissions for a run directory at `run_dir`. Tests writing with a temporary file."""
    from prime_train.checkpoints import layout  # 9 ms of the start of `estimate`

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


def find_machine_link() -> MachineLink | NotKnown | None:
    """The other machines of the run, as the environment has them; None without any."""
    try:
        found = find_machines(os.environ)
    except UserError as error:
        return NotKnown(f"{error.where}: {error.what}")
    if found is None:
        return None
    weakness = find_weakness(os.environ.get(SECRET, ""))
    return MachineLink(found.rank, found.addresses, found.port, weakness, find_launcher(os.environ))
