"""Typed views of shipped data: presets, GPUs and their driver's errors, packages that clash, memory coefficients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import tomli

from prime_train.core.installation import presets_folder, shipped


def data_file(name: str) -> Path:
    """A file of `registry/`, by its name."""
    return Path(shipped(name))


def presets() -> dict[str, Path]:
    """Preset name -> its file."""
    return {path.stem: path for path in sorted(Path(presets_folder()).glob("*.toml"))}


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """One GPU type. `name` is a part of its name in NVML and torch."""

    name: str
    id: str
    peak_flops_bf16_dense: float
    memory_gb: float  # as sold
    bandwidth_gb_per_s: float
    source: str
    as_of: str
    usable_gib: float | None = None  # visible to torch; None = not known
    compute_capability: str | None = None  # "9.0"; None = not an NVIDIA GPU
    peak_flops_fp8_dense: float | None = None  # None = no fp8

    @property
    def is_looked_up(self) -> bool:
        """Whether every number comes from `source`. Else some are from memory."""
        return "from memory" not in self.source


@dataclass(frozen=True, slots=True)
class Clash:
    """Packages that do not work together in one interpreter.

    `packages` maps a distribution to a PEP 440 specifier: "==0.28.0", ">=3", "" for every version. `torch_cuda` limits
    the clash to a torch build: "none" without CUDA, "" for all.
    """

    id: str
    severity: Literal["warning", "error"]
    packages: dict[str, str]
    what: str
    why: str
    fix: str
    source: str
    as_of: str
    torch_cuda: Literal["", "none"] = ""


@cache
def read_table(name: str) -> dict[str, Any]:
    """The content of a TOML file of `registry/`. The caller must not change it."""
    with open(shipped(name), "rb") as file:
        return tomli.load(file)


@cache
def clashes() -> tuple[Clash, ...]:
    return tuple(Clash(**entry) for entry in read_table("compatibility.toml")["clash"])


@cache
def gpu_peaks() -> tuple[GpuPeak, ...]:
    return tuple(GpuPeak(**entry) for entry in read_table("gpus.toml")["gpu"])


def gpu_peak(device_name: str) -> GpuPeak | None:
    """The entry with the longest name in `device_name`, or None. Compares whole words: an A100 is not an A10."""
    matching = [gpu for gpu in gpu_peaks() if re.search(rf"(?i)\b{re.escape(gpu.name)}\b", device_name)]
    return max(matching, key=lambda gpu: len(gpu.name), default=None)


@dataclass(frozen=True, slots=True)
class XidEntry:
    """One error number. registry/xids.toml explains the fields."""

    code: int
    name: str
    nvidia_action: str
    answer: Literal["note", "alert", "restart"]
    cause_class: str
    why: str
    fix: str
    source: str
    as_of: str
    only_with: str = ""


@cache
def xids() -> dict[int, XidEntry]:
    return {entry["code"]: XidEntry(**entry) for entry in read_table("xids.toml")["xid"]}


def xid(code: int) -> XidEntry:
    """The entry of a number; a placeholder for a number that is not in the table."""
    return xids().get(code) or XidEntry(
        code,
        name="not in registry/xids.toml",
        nvidia_action="",
        answer="alert",
        cause_class="hardware",
        why="a later driver may know more errors than the table",
        fix="look the number up: docs.nvidia.com/deploy/xid-errors",
        source="",
        as_of="",
    )
