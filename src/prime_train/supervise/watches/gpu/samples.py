"""What the GPU watch's child says, as values. Whatever the driver does not tell is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LOST = "lost"
RESET_REQUIRED = "reset required"


@dataclass(frozen=True, slots=True)
class Use:
    """A process that computes on a GPU, by the number that the driver gives. In a container it may be the host's.

    `ancestors`: the processes that it descends from, nearest first; None where there is none of its number here.
    `marked`: it carries the run's mark in its environment.
    """

    pid: int
    used_bytes: int | None
    ancestors: tuple[int, ...] | None = None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. `fault` is LOST, RESET_REQUIRED or the driver's words; then nothing else is known."""

    index: int
    uuid: str  # "" where it was never known
    pci: str = ""  # "0000:3b:00"
    fault: str = ""
    used_bytes: int | None = None
    uses: tuple[Use, ...] | None = None
    utilisation_percent: int | None = None
    slow_reasons: int | None = None  # bits, nvml.h: nvmlClocksEventReasons
    uncorrected_errors: int | None = None  # of its memory, since the driver was loaded
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None  # nvml.h: nvmlGpuRecoveryAction


@dataclass(frozen=True, slots=True)
class Reading:
    """All GPUs at one moment. `taken_s` by time.monotonic()."""

    taken_s: float
    gpus: tuple[GpuSample, ...]
    log_sequence: int = -1  # of the kernel's log, as far as it was read; -1 = it cannot be read


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver told: its library with a UUID, the kernel's log with an address and words."""

    taken_s: float
    code: int
    uuid: str = ""
    pci: str = ""
    text: str = ""
    log_sequence: int = -1


@dataclass(frozen=True, slots=True)
class NoDriver:
    """There is nothing to watch, for the reason given. The child has ended."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The driver is there and gives no answer that can be used. The child has ended."""

    why: str


Heard = Reading | Xid | NoDriver | Refused


def heard(line: dict[str, Any]) -> Heard:
    """One line of the child. Raises KeyError and TypeError for a line that it does not write."""
    if "no_driver" in line:
        return NoDriver(line["no_driver"])
    if "refused" in line:
        return Refused(line["refused"])
    if "code" in line:
        return Xid(**line)
    return Reading(line["taken_s"], tuple(_gpu(gpu) for gpu in line["gpus"]), line["log_sequence"])


def _gpu(said: dict[str, Any]) -> GpuSample:
    uses = said.get("uses")
    return GpuSample(**said | {"uses": None if uses is None else tuple(map(_use, uses))})


def _use(said: dict[str, Any]) -> Use:
    ancestors = said["ancestors"]
    return Use(**said | {"ancestors": None if ancestors is None else tuple(ancestors)})
