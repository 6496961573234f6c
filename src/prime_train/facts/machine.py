"""The facts about the machine itself: limits, processor, memory, disks, clock, GPUs and ports. No I/O."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class OpenFiles(NamedTuple):
    """RLIMIT_NOFILE of this process, which the trainer inherits. `hard` is None if there is no limit."""

    soft: int
    hard: int | None


class Cpu(NamedTuple):
    """`cores` that this process may use; `bf16_instruction`: the instruction set with bf16 dot products, or ""."""

    cores: int
    bf16_instruction: str


class Ram(NamedTuple):
    """Memory of the machine, or the limit of the control group if that is lower."""

    total_bytes: int
    available_bytes: int


class SaveDir(NamedTuple):
    """The place of the run directory: `existing` is the directory or its nearest parent that exists.

    `refusal` is the system's error for a file written there, "" if writing works. `held_bytes` is the size of this
    run's checkpoints. `file_system` is the kernel's name of its type, "" if it is not known.
    """

    path: Path
    existing: Path
    free_bytes: int
    held_bytes: int
    refusal: str
    file_system: str = ""


class DiskSpeed(NamedTuple):
    """Bytes per second that reach the disk of the run directory."""

    bytes_per_s: float


class Shm(NamedTuple):
    """/dev/shm, which processes of one machine use to share tensors."""

    total_bytes: int
    free_bytes: int


class MachineClock(NamedTuple):
    """The clock of this machine. A time before `not_before_unix_s`, when the file `witness` was written, is wrong."""

    unix_s: float
    not_before_unix_s: float
    witness: str


class GpuUser(NamedTuple):
    """A process that computes on a GPU. `name` is "" for a process of another process namespace."""

    pid: int
    used_bytes: int
    name: str


class Gpu(NamedTuple):
    """One GPU. If it does not answer, `fault` is the driver's error, and all other fields are empty."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    used_bytes: int = 0
    users: tuple[GpuUser, ...] = ()
    fault: str = ""


class VisibleGpus(NamedTuple):
    """The GPUs that this process may use, from NVML. `reason`: why there are none."""

    devices: tuple[Gpu, ...]
    reason: str = ""
    driver: str = ""
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver supports


class BusyPort(NamedTuple):
    port: int
    why: str


class CudaContext(NamedTuple):
    """The number of GPUs that torch computed on in a child process; `failure` is "" if all work."""

    devices: int
    failure: str


class MachineLink(NamedTuple):
    """The machines of one run that the environment names, by their numbers; `rank` is that of this one.

    `weakness`: why their secret protects nothing, "" if it does; never the secret. `launcher`: what started them.
    """

    rank: int
    addresses: tuple[str, ...]
    port: int
    weakness: str = ""
    launcher: str = ""
