"""Finds the registry's GPU for the name that a cloud uses ("H100_80GB", "RTX 6000Ada", "A100-80GB"). Pure.

A card that only resembles a known one (an RTX 4090 with 48 GB, an H200 NVL) does not match, because its price would be
compared with another card's speed.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple

from prime_train.registry.gpus import GpuPeak, gpu_peaks

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


@lru_cache(4096)
def gpu_id(name: str, form: str = "", memory_gb: float | None = None) -> str | None:
    """The registry's id of the GPU that a cloud calls `name`; None if the registry does not have it.

    `form` is PCIe, SXM5, NVL or "" if not known; `memory_gb` is the memory of one GPU. A memory size in the name
    ("H100_80GB") precedes `memory_gb`.
    """
    parts = _parse_name(name)
    return _match_card(
        _SAME.get(parts.family, parts.family), parts.form or _form(form.upper()), parts.memory_gb or memory_gb
    )


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
