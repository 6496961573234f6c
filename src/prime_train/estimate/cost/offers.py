"""Ranks GPU offers by the cost of the whole run. Pure; a function passed in estimates memory and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from prime_train.estimate.cost.run_cost import Cost, InterruptionRates, PricedWork, cost_at
from prime_train.estimate.relayout import Impossible, TrainedWork
from prime_train.estimate.values import Interval
from prime_train.estimate.verdict import Chance, MemoryVerdict
from prime_train.prices.price import Price
from prime_train.registry.gpus import read_table

_WHOLE_MACHINE_GPUS = 8  # smaller offers share a host with other users and are not joined into one run


class Judgement(NamedTuple):
    """The run on a number of GPUs of one type: memory of its fullest GPU, and time.

    `settings` are the RunSpec fields to set for it, with their values; the value None removes the field.
    """

    chance: Chance
    needed_gib: float
    usable_gib: float
    work: TrainedWork
    step_s: Interval
    settings: tuple[tuple[str, Any], ...] = ()


Judge = Callable[[str, int], Judgement | Impossible]  # takes (GPU id, number of GPUs)


class OfferLimits(NamedTuple):
    """Limits of the search. `spot`: include spot offers. `checkpoint_steps`: steps between checkpoints."""

    checkpoint_steps: int | None
    spot: bool = False
    max_usd_per_hour: float | None = None
    gpus_max: int = 64


class RankedOffer(NamedTuple):
    """An offer that fits or likely fits: the number of `machines` used, and the cost of the whole run."""

    price: Price
    machines: int
    judgement: Judgement
    cost: Cost

    @property
    def fits(self) -> bool:
        return self.judgement.chance.verdict is MemoryVerdict.FITS

    @property
    def gpus(self) -> int:
        return self.price.gpus * self.machines

    @property
    def usd_per_hour(self) -> float:
        return self.price.usd_per_hour * self.machines


class TooSmall(NamedTuple):
    """An offer whose GPUs have too little memory for the run, with the number of machines that was tried."""

    price: Price
    machines: int
    judgement: Judgement


class Ranking(NamedTuple):
    """Offers that fit, the cheapest run first, then those that likely fit. `left_out`: (reason, number of offers).

    `closest` is the offer with the smallest ratio of needed to usable memory; None if every offer has enough.
    """

    offers: tuple[RankedOffer, ...]
    left_out: tuple[tuple[str, int], ...]
    closest: TooSmall | None = None


def rank(prices: Iterable[Price], judge: Judge, limits: OfferLimits, rates: InterruptionRates) -> Ranking:
    """Every offer with the number of machines that makes the whole run cheapest, ranked by verdict, then by that cost.

    The start counts as long as a restart; without it a short run would seem almost free on a hundred GPUs.
    """
    found: list[RankedOffer] = []
    too_small: list[TooSmall] = []
    left_out: Counter[str] = Counter()
    for price in prices:
        if price.spot and not limits.spot:
            left_out["spot: --spot includes them"] += 1
            continue
        tried = [_try_offer(price, machines, judge, limits, rates) for machines in _machines(price, limits)]
        suitable = [option for option in tried if isinstance(option, RankedOffer)]
        if suitable:
            found.append(min(suitable, key=lambda option: (not option.fits, option.cost.usd.typical)))
            continue
        too_small += [option for option in tried if isinstance(option, TooSmall)]
        refusals = [option for option in tried if isinstance(option, str)]
        if not tried:
            left_out[f"more GPUs in one machine than {limits.gpus_max}"] += 1
        else:
            left_out[refusals[0] if len(refusals) == len(tried) else "the run does not fit into the memory"] += 1
    found.sort(key=lambda option: (not option.fits, option.cost.usd.typical, option.cost.usd.high, option.price))
    closest = min(too_small, key=lambda option: option.judgement.needed_gib / option.judgement.usable_gib, default=None)
    return Ranking(tuple(found), tuple(left_out.most_common()), closest)


def _try_offer(
    price: Price, machines: int, judge: Judge, limits: OfferLimits, rates: InterruptionRates
) -> RankedOffer | TooSmall | str:
    """The offer with its cost, or why it is unsuitable."""
    gpus = price.gpus * machines
    if limits.max_usd_per_hour is not None and price.usd_per_hour * machines > limits.max_usd_per_hour:
        return f"above {limits.max_usd_per_hour:g} USD an hour"
    judgement = judge(price.gpu, gpus)
    if isinstance(judgement, Impossible):
        return judgement.why
    if judgement.chance.verdict is MemoryVerdict.DOES_NOT_FIT:
        return TooSmall(price, machines, judgement)
    work = PricedWork(
        price.gpu, gpus, judgement.work.steps, judgement.step_s, limits.checkpoint_steps, start_s=rates.restart_s
    )
    return RankedOffer(price, machines, judgement, cost_at(work, (price,), rates))


def _machines(price: Price, limits: OfferLimits) -> Iterator[int]:
    """Numbers of machines to try: one, and powers of two of whole machines if the cloud can join them into one run."""
    machines = 1
    while price.gpus * machines <= limits.gpus_max:
        yield machines
        if price.gpus < _WHOLE_MACHINE_GPUS or not can_join(price.cloud):
            return
        machines *= 2


def can_join(cloud: str) -> bool:
    """Whether machines of this cloud can be joined into one run; False for an unknown cloud."""
    return any(entry["id"] == cloud and entry["multi_node"] for entry in read_table("clouds.toml")["cloud"])
