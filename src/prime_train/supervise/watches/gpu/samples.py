"""The output of the GPU watch's child, as values. What the driver does not report is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass

LOST = "lost"
RESET_REQUIRED = "reset required"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU, with the pid that the driver reports. In a container this may be the host's.

    `ancestors`: its parent, the parent of that, and so on; None if no process here has this pid.
    `marked`: it carries the run's mark in its environment.
    """

    pid: int
    used_bytes: int | None
    ancestors: tuple[int, ...] | None = None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. `fault` is LOST, RESET_REQUIRED or the driver's text; then nothing else is known."""

    index: int
    uuid: str  # "" if it was never known
    pci: str = ""  # "0000:3b:00"
    fault: str = ""
    used_bytes: int | None = None
    uses: tuple[GpuProcess, ...] | None = None
    utilisation_percent: int | None = None
    slow_reasons: int | None = None  # bits, nvml.h: nvmlClocksEventReasons
    uncorrected_errors: int | None = None  # of its memory, since the driver was loaded
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None  # nvml.h: nvmlGpuRecoveryAction
    corrected_errors: int | None = None  # as uncorrected_errors
    remapped_rows: int | None = None
    pcie_replays: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None  # the temperature at which it slows down


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs at one moment. `taken_s` by time.monotonic()."""

    taken_s: float
    gpus: tuple[GpuSample, ...]
    log_sequence: int = -1  # how far the kernel's log was read; -1 = it cannot be read


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reports: its library with a UUID, the kernel's log with an address and text."""

    taken_s: float
    code: int
    uuid: str = ""
    pci: str = ""
    text: str = ""
    log_sequence: int = -1


@dataclass(frozen=True, slots=True)
class NoDriver:
    """There is nothing to watch, for this reason. The child has ended."""

    why: str


@dataclass(frozen=True, slots=True)
class DriverRefusal:
    """There is a driver, and it gives no usable answer. The child has ended."""

    why: str


Message = GpuReading | Xid | NoDriver | DriverRefusal
