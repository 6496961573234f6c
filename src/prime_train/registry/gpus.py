"""Typed views of shipped data: presets, GPUs with their names at clouds and their driver's errors, packages that clash.

A card that only resembles a known one (an RTX 4090 with 48 GB, an H200 NVL) does not match the name of a cloud, because
its price would be compared with another card's speed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli

from prime_train.core.installation import presets_folder, shipped

# Names of clouds for a card that differ from the registry's: SkyPilot catalogues v8, Prime Intellect, Vast.
_SAME = {
    "A6000": "RTXA6000",
    "RTX6000ADAGENERATION": "RTX6000ADA",
    "RTXPRO6000S": "RTXPRO6000",
    "RTXPRO6000WS": "RTXPRO6000",
    "RTXPRO6000SERVER": "RTXPRO6000",
    "RTXPRO6000WORKSTATION": "RTXPRO6000",
    "H100MEGA": "H100",  # GCP's a3-megagpu: the same card behind a faster network
}
_MEMORY = re.compile(r"(\d{2,3})GB")
_FORM = re.compile(r"PCIE|NVL(?!INK)|SXM\d?")
_NOISE = frozenset(("NVIDIA", "GEFORCE", "TESLA", "AMD", "INSTINCT", "HBM3"))
_LEAST_GB = 4.0
_MEMORY_TOLERANCE = 0.12  # 80 GB are listed as 79.6 GiB, 81559 MiB or 85.9e9 B


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


@lru_cache(4096)
def gpu_id(name: str, form: str = "", memory_gb: float | None = None) -> str | None:
    """The registry's id of the GPU that a cloud calls `name`; None if the registry does not have it.

    `form` is PCIe, SXM5, NVL or "" if not known; `memory_gb` is the memory of one GPU. A memory size in the name
    ("H100_80GB") precedes `memory_gb`.
    """
    parts = _parse_name(name)
    family = _SAME.get(parts.family, parts.family)
    return _match_card(family, parts.form or _form(form.upper()), parts.memory_gb or memory_gb)


def gpu_id_of_offer(name: str, form: str, listed_gb: float | None, gpus: int) -> str | None:
    """The same if `listed_gb` may be the memory of one GPU or of all `gpus` of the offer, which differs between clouds.

    A value below 4 GB is in another unit and is ignored.
    """
    if listed_gb is None or listed_gb < _LEAST_GB:
        return gpu_id(name, form)
    return gpu_id(name, form, listed_gb / gpus) or gpu_id(name, form, listed_gb)


class _NameParts(NamedTuple):
    """The parts of a name. `form` is "" and `memory_gb` None if the name does not contain them."""

    family: str
    form: str
    memory_gb: float | None


def _parse_name(name: str) -> _NameParts:
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word and word not in _NOISE]
    memory = next((float(match[1]) for word in words if (match := _MEMORY.fullmatch(word))), None)
    joined = "".join(word for word in words if not _MEMORY.fullmatch(word))
    return _NameParts(_FORM.sub("", joined), _form(joined), memory)


def _form(text: str) -> str:
    """The form in a text: "PCIE", "NVL", "SXM", or "" for none."""
    found = _FORM.search(text)
    return "" if found is None else found[0][:3] if found[0].startswith("SXM") else found[0]


def _match_card(family: str, form: str, memory_gb: float | None) -> str | None:
    """The card of this family, memory and form. PCIE also matches the only card of its family and memory."""
    alike = [(name, gpu) for name, gpu in _cards() if name.family == family]
    if memory_gb is not None:
        alike = [
            (name, gpu) for name, gpu in alike if abs(gpu.memory_gb - memory_gb) <= _MEMORY_TOLERANCE * gpu.memory_gb
        ]
    wanted = "" if form == "SXM" else form  # the registry names no SXM: it is the only form, or the usual one
    exact = [gpu.id for name, gpu in alike if name.form == wanted]
    if exact:
        return exact[0]
    return alike[0][1].id if form == "PCIE" and len(alike) == 1 else None


@cache
def _cards() -> tuple[tuple[_NameParts, GpuPeak], ...]:
    """The registry's GPUs, least memory first: "A100" alone means the one of 40 GB, as in the SkyPilot catalogues."""
    return tuple((_parse_name(gpu.id), gpu) for gpu in sorted(gpu_peaks(), key=lambda gpu: gpu.memory_gb))
