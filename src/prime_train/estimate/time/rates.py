"""Reads the cost of a unit of work on a class of GPUs: published values, and values fitted per trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import tomli

from prime_train.core.paths import shipped
from prime_train.estimate.values import Hardware

Costs = Mapping[str, Mapping[str, float]]  # term -> key -> multiple of the ideal time, or milliseconds per visit


class Links(NamedTuple):
    """Bytes per second that one GPU can send in one direction."""

    node: float
    network: float
    host: float


class Spread(NamedTuple):
    """Factors of the estimate between which nine of ten measured rows lie.

    `low` and `high` hold at distance 0; their logarithms grow by `growth` per unit of distance.
    """

    low: float
    high: float
    growth: float


class Rates(NamedTuple):
    """The costs of one trainer. `recompute_share`: cost of recomputed work relative to the same work the first time."""

    fitted: Costs
    published: Costs
    spread: Spread
    fitted_rows: int = 0
    recompute_share: float = 1.0
    fitted_on: str = ""

    def cost(self, term: str, keys: Sequence[str]) -> tuple[float, bool]:
        """(cost of a term, whether it is fitted) for the first known key; a fitted cost precedes a published one.
        The last key is "any", which every published term has."""
        fitted, published = self.fitted.get(term, {}), self.published[term]
        for key in keys:
            if key in fitted:
                return fitted[key], True
            if key in published:
                return published[key], False
        return published["any"], False


def gpu_class(hardware: Hardware) -> str:
    """The class of GPUs with the same kernels and limits: "ampere", "workstation", "hopper", "blackwell" or "other"."""
    capability = hardware.compute_capability
    if capability is None:
        return "other"
    if capability == (8, 0):
        return "ampere"
    if capability[0] == 9:
        return "hopper"
    if capability[0] == 10:
        return "blackwell"
    return "workstation" if capability in ((8, 6), (8, 9), (12, 0)) else "other"


def links_of(hardware: Hardware) -> Links:
    """The links of a GPU. Cards without a switch between them (PCIe) use the key "any"."""
    links, name = _published_table()["links"], gpu_class(hardware)
    if "pcie" in hardware.id or "nvl" in hardware.id:
        name = "any"
    one = [links[f"{part}_bytes_per_s"] for part in ("node", "network", "host")]
    return Links(*(float(rates.get(name, rates["any"])) for rates in one))


def published_costs() -> Costs:
    """Term -> key -> cost, from publications only."""
    return {term: entry["value"] for term, entry in _published_table()["cost"].items()}


def rates_of(trainer: str) -> Rates:
    """The rates of a trainer: fitted to its measured rows if there are any, else published ones only."""
    table = _fitted_table()
    entry = table["trainer"].get(trainer)
    if entry is None:
        return Rates({}, published_costs(), Spread(**table["unmeasured"]["spread"]))
    return Rates(
        fitted=entry["cost"],
        published=published_costs(),
        spread=Spread(**entry["spread"]),
        fitted_rows=entry["rows"],
        recompute_share=entry["recompute_share"],
        fitted_on=entry["fitted_on"],
    )


@cache
def _published_table() -> Mapping[str, Any]:
    with open(shipped("throughput.toml"), "rb") as file:
        return tomli.load(file)


@cache
def _fitted_table() -> Mapping[str, Any]:
    with open(shipped("throughput_fitted.toml"), "rb") as file:
        return tomli.load(file)
