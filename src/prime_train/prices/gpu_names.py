"""Tells which GPU of the registry a cloud means by a name ("H100_80GB", "RTX 6000Ada", "A100-80GB"). Pure.

A card that only resembles a known one (an RTX 4090 with 48 GB, an H200 NVL) is none: its price would be compared
with another card's speed.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple

from prime_train import registry

# What clouds call a card, beside the name the registry has: SkyPilot catalogues v8, Prime Intellect, Vast.
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
_MEMORY_TOLERANCE = 0.12  # sold as 80 GB, told as 79.6 GiB, 81559 MiB or 85.9e9 B


class _Card(NamedTuple):
    id: str
    family: str
    form: str  # "PCIE", "NVL", or "" for the SXM or only one
    memory_gb: float


@lru_cache(4096)
def gpu_id(name: str, form: str = "", memory_gb: float | None = None) -> str | None:
    """The registry's id of what a cloud calls `name`; None where the registry does not have it.

    `form` is PCIe, SXM5, NVL or "" where it is not told, `memory_gb` the memory of one GPU. A memory in the name
    itself ("H100_80GB") counts before it.
    """
    said = _said(name)
    shape = said.form or _form(form.upper())
    return _best(_SAME.get(said.family, said.family), shape, said.memory_gb or memory_gb)


def gpu_id_of_offer(name: str, form: str, told_gb: float | None, gpus: int) -> str | None:
    """The same where it is not known whether `told_gb` is the memory of one GPU or of all `gpus` of the offer.

    Catalogues differ in it from cloud to cloud. What is under 4 GB is in another unit, and says nothing.
    """
    if told_gb is None or told_gb < _LEAST_GB:
        return gpu_id(name, form)
    return gpu_id(name, form, told_gb / gpus) or gpu_id(name, form, told_gb)


class _Said(NamedTuple):
    """What a name says. `form` and `memory_gb` are "" and None where it says nothing of them."""

    family: str
    form: str
    memory_gb: float | None


def _said(name: str) -> _Said:
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word and word not in _NOISE]
    memory = next((float(match[1]) for word in words if (match := _MEMORY.fullmatch(word))), None)
    joined = "".join(word for word in words if not _MEMORY.fullmatch(word))
    return _Said(_FORM.sub("", joined), _form(joined), memory)


def _form(text: str) -> str:
    """ "PCIE", "NVL", "SXM", or "" where none is named."""
    found = _FORM.search(text)
    return "" if found is None else found[0][:3] if found[0].startswith("SXM") else found[0]


def _best(family: str, form: str, memory_gb: float | None) -> str | None:
    """Of the cards of this family and memory the one in this form; a form the registry does not tell apart is any."""
    alike = [card for card in _cards() if card.family == family]
    if memory_gb is not None:
        alike = [card for card in alike if abs(card.memory_gb - memory_gb) <= _MEMORY_TOLERANCE * card.memory_gb]
    wanted = "" if form == "SXM" else form
    exact = [card for card in alike if card.form == wanted]
    if exact:
        return exact[0].id
    return alike[0].id if form == "PCIE" and len(alike) == 1 else None


@cache
def _cards() -> tuple[_Card, ...]:
    """The registry's GPUs, least memory first: "A100" alone is the one of 40 GB, as in the SkyPilot catalogues."""
    said = [(gpu, _said(gpu.id)) for gpu in registry.gpu_peaks()]
    cards = [_Card(gpu.id, name.family, name.form, gpu.memory_gb) for gpu, name in said]
    return tuple(sorted(cards, key=lambda card: card.memory_gb))
