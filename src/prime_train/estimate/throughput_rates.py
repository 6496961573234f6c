"""Reads what a unit of work costs on a class of GPUs: published values, and those fitted per trainer. Times nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import tomli

from prime_train.estimate.values import Hardware
from prime_train.shipped import shipped

Costs = Mapping[str, Mapping[str, float]]  # term -> key -> multiple of the ideal time, or milliseconds per visit


class Links(NamedTuple):
    """What one GPU can send in one direction, in bytes per second."""

    node: float
    network: float
    host: float


class Spread(NamedTuple):
    """Between which multiples of the estimate nine of ten measured rows lie, and how that grows with distance.

    `low` and `high` hold at distance 0; their logarithms grow by `growth` per unit of distance.
    """

    low: float
    high: float
    growth: float


class Rates(NamedTuple):
    """The costs of one trainer. `recompute_share` is what recomputed work costs against the same work done first."""

    fitted: Costs
    published: Costs
    spread: Spread
    fitted_rows: int = 0
    recompute_share: float = 1.0
    fitted_on: str = ""

    def cost(self, term: str, keys: Sequence[str]) -> tuple[float, bool]:
        """The cost of a term under the first of `keys` that is known, the fitted before the published; and whether
        it is a fitted one. The last key is "any", which every published term has."""
        fitted, published = self.fitted.get(term, {}), self.published[term]
        for key in keys:
            if key in fitted:
                return fitted[key], True
            if key in published:
                return published[key], False
        return published["any"], False


def gpu_class(hardware: Hardware) -> str:
    """The class that shares kernels and limits: "ampere", "workstation", "hopper", "blackwell", else "other"."""
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
    """The links of a GPU. Cards without a switch between them (PCIe) fall under "any"."""
    links, name = _published()["links"], gpu_class(hardware)
    if "pcie" in hardware.id or "nvl" in hardware.id:
        name = "any"
    one = [links[f"{part}_bytes_per_s"] for part in ("node", "network", "host")]
    return Links(*(float(rates.get(name, rates["any"])) for rates in one))


def published_costs() -> Costs:
    """Term -> key -> cost, from publications alone."""
    return {term: entry["value"] for term, entry in _published()["cost"].items()}


def rates_of(trainer: str) -> Rates:
    """The rates of a trainer: fitted to its measured rows where there are any, else the published ones alone."""
    table = _fitted()
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
def _published() -> Mapping[str, Any]:
    with open(shipped("throughput.toml"), "rb") as file:
        return tomli.load(file)


@cache
def _fitted() -> Mapping[str, Any]:
    with open(shipped("throughput_fitted.toml"), "rb") as file:
        return tomli.load(file)
