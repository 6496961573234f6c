"""Reads the cost of a unit of work on a class of GPUs: published values, and values fitted per trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prime_train.estimate.values import Hardware
from prime_train.registry.gpus import read_table

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
    match hardware.compute_capability:
        case (8, 0):
            return "ampere"
        case (9, _):
            return "hopper"
        case (10, _):
            return "blackwell"
        case (8, 6) | (8, 9) | (12, 0):
            return "workstation"
    return "other"


def links_of(hardware: Hardware) -> Links:
    """The links of a GPU. Cards without a switch between them (PCIe) use the key "any"."""
    links, name = read_table("throughput.toml")["links"], "any" if hardware.is_card else gpu_class(hardware)
    one = [links[f"{part}_bytes_per_s"] for part in ("node", "network", "host")]
    return Links(*(float(rates.get(name, rates["any"])) for rates in one))


def published_costs() -> Costs:
    """Term -> key -> cost, from publications only."""
    return {term: entry["value"] for term, entry in read_table("throughput.toml")["cost"].items()}


def rates_of(trainer: str) -> Rates:
    """The rates of a trainer: fitted to its measured rows if there are any, else published ones only."""
    table = read_table("throughput_fitted.toml")
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
