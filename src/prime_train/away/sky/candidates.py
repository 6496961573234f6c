"""Chooses the machines on which a job may run: cloud and GPU type, each judged by the estimate. Pure; rents nothing.

Machines are compared by what the whole run costs on them; by the hour if how long it takes is not known.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prime_train.away.sky.commands import Accelerator, Cloud
from prime_train.estimate.cost.run_cost import InterruptionRates, PricedWork, cost_at
from prime_train.estimate.values import Interval
from prime_train.prices.price import Price

_MOST = 10  # SkyPilot asks them one after the other; further ones are dearer
_DEAREST = 2.0  # a candidate may cost so many times the cheapest: another machine is worth waiting for


class Candidate(NamedTuple):
    """GPUs of one type on one cloud, on one machine.

    `usd_per_hour` is the spot price of the machine and `run_usd` the typical cost of the whole run; both are None if
    the price table has no such offer, and `run_usd` also if the time of the run is not known. `cap_usd_per_hour` is the
    highest price to pay; None if the table has no price of the GPU.
    """

    cloud: str
    accelerator: str
    gpu: str
    gpus: int
    usd_per_hour: float | None
    run_usd: float | None
    cap_usd_per_hour: float | None
    region: str = ""


class CandidateChoice(NamedTuple):
    """Candidates, those with a price first, the cheapest first, and why others are left out (reason, number)."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[str, int], ...]

    @property
    def has_prices(self) -> bool:
        """A candidate has a price, so they are ordered by cost: those without a price come last."""
        return any(candidate.usd_per_hour is not None for candidate in self.candidates)


class Speed(NamedTuple):
    """The run on the GPUs of a candidate. A run that does not fit has no Speed."""

    steps: int
    step_s: Interval


# Takes a GPU id. Returns why the run cannot use such GPUs, or None if its speed on them is not known.
Judge = Callable[[str], Speed | str | None]


class RentedGpus(NamedTuple):
    """The GPUs that the user names for one machine: their number, and the type by its id in registry/gpus.toml."""

    number: int
    gpu: str


class WantedMachines(NamedTuple):
    """What the run needs: GPUs on one machine, and steps between checkpoints.

    `max_usd_per_hour`: the user's limit, for all machines together.
    """

    gpus: int
    checkpoint_steps: int | None
    max_usd_per_hour: float | None = None
    machines: int = 1


class Market(NamedTuple):
    """What can be rented: clouds, SkyPilot's names of GPUs, prices, and rates of interruption."""

    clouds: tuple[Cloud, ...]
    accelerators: tuple[Accelerator, ...]
    prices: tuple[Price, ...]
    rates: InterruptionRates


def choose(wanted: WantedMachines, market: Market, judge: Judge) -> CandidateChoice:
    """The machines of these clouds on which the run fits.

    A candidate without a price stands behind those with one, by the median price of its GPU on other clouds.
    """
    left_out: Counter[str] = Counter()
    ranked: list[tuple[bool, float, int, Candidate]] = []
    prices, rates = market.prices, market.rates
    for place, cloud in enumerate(market.clouds):
        for accelerator in market.accelerators:
            if cloud.id not in accelerator.clouds:
                continue
            speed = judge(accelerator.gpu)
            if isinstance(speed, str):
                left_out[speed] += 1
                continue
            found = _candidate(wanted, cloud, accelerator, prices)
            hourly_usd = (found.usd_per_hour or 0.0) * wanted.machines
            if wanted.max_usd_per_hour is not None and hourly_usd > wanted.max_usd_per_hour:
                left_out[f"above {wanted.max_usd_per_hour:g} USD an hour"] += 1
                continue
            own = _offers(prices, found, cloud.id, exact=True)
            usd = _usd(found, speed, wanted, own or _offers(prices, found, cloud.id), rates)
            run_usd = usd if own and speed is not None else None
            ranked.append((not own, usd, place, found._replace(run_usd=run_usd)))
    ranked.sort(key=lambda item: item[:3])
    best = min((usd for _, usd, _, _ in ranked), default=0.0)
    kept = [found for _, usd, _, found in ranked if usd <= best * _DEAREST or best == float("inf")]
    if len(ranked) > len(kept):
        left_out[f"more than {_DEAREST:g} times the cost of the cheapest"] += len(ranked) - len(kept)
    if len(kept) > _MOST:
        left_out[f"{_MOST} cheaper ones are enough"] += len(kept) - _MOST
    return CandidateChoice(tuple(kept[:_MOST]), tuple(left_out.most_common()))


def _candidate(wanted: WantedMachines, cloud: Cloud, accelerator: Accelerator, prices: Sequence[Price]) -> Candidate:
    gpu, gpus = accelerator.gpu, wanted.gpus
    found = Candidate(cloud.id, accelerator.name, gpu, gpus, None, None, None)
    own = min(_offers(prices, found, cloud.id, exact=True), key=lambda price: price.usd_per_hour, default=None)
    on_demand = [price.usd_per_gpu_hour * gpus for price in prices if price.gpu == gpu and not price.spot]
    limit = wanted.max_usd_per_hour and wanted.max_usd_per_hour / wanted.machines  # SkyPilot counts one machine
    cap = limit or (round(max(on_demand), 2) if on_demand else None)
    if own is None:
        return found._replace(cap_usd_per_hour=cap)
    return found._replace(usd_per_hour=own.usd_per_hour, region=own.region, cap_usd_per_hour=cap)


def _offers(prices: Sequence[Price], found: Candidate, cloud: str, *, exact: bool = False) -> list[Price]:
    """Spot offers of this machine: on this cloud with `exact`, else of this GPU on any cloud."""
    return [
        price
        for price in prices
        if price.spot and price.gpu == found.gpu and (not exact or (price.cloud == cloud and price.gpus == found.gpus))
    ]


def _usd(
    found: Candidate, speed: Speed | None, wanted: WantedMachines, offers: Sequence[Price], rates: InterruptionRates
) -> float:
    """USD of the whole run; of an hour if its speed is not known."""
    if not offers:
        return float("inf")  # without a price
    middle = statistics.median(price.usd_per_gpu_hour for price in offers)
    gpus = found.gpus * wanted.machines  # one machine that is taken away ends the work of all
    price = offers[0]._replace(usd_per_gpu_hour=middle, gpus=gpus)
    if speed is None:
        return price.usd_per_hour
    work = PricedWork(found.gpu, gpus, speed.steps, speed.step_s, wanted.checkpoint_steps, start_s=rates.restart_s)
    return cost_at(work, (price,), rates).usd.typical
