"""Ranks offers by what the whole run costs on them. Pure: how much memory and time it takes is told by a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import tomli

from prime_train import registry
from prime_train.estimate.cost import Cost, Work, cost_at
from prime_train.estimate.interruptions import Rates
from prime_train.estimate.values import Interval
from prime_train.prices.price import Price

_WHOLE_MACHINE_GPUS = 8  # smaller ones share a host with strangers, and are not joined into one run


class Judged(NamedTuple):
    """The run on so many GPUs of one type: memory of its fullest GPU, and time.

    `settings` are the RunSpec fields to set for it, and their values; None of one that is to be left out.
    """

    fits: bool
    needed_gib: float
    usable_gib: float
    steps: int
    step_s: Interval
    settings: tuple[tuple[str, Any], ...] = ()


class Refused(NamedTuple):
    """The run cannot be judged on so many GPUs of this type, and why."""

    why: str


Judge = Callable[[str, int], Judged | Refused]  # of (GPU id, GPUs)


class Limits(NamedTuple):
    """What is looked for. `spot`: spot offers too. `checkpoint_steps`: steps between checkpoints."""

    checkpoint_steps: int | None
    spot: bool = False
    max_usd_per_hour: float | None = None
    gpus_max: int = 64


class Ranked(NamedTuple):
    """An offer that fits: `machines` of it together, and what the whole run costs there."""

    price: Price
    machines: int
    judged: Judged
    cost: Cost

    @property
    def gpus(self) -> int:
        return self.price.gpus * self.machines

    @property
    def usd_per_hour(self) -> float:
        return self.price.usd_per_hour * self.machines


class TooSmall(NamedTuple):
    """An offer whose GPUs have too little memory for the run, on all of its machines that were tried."""

    price: Price
    machines: int
    judged: Judged


class Ranking(NamedTuple):
    """Offers that fit, the cheapest run first, and why others do not, as (why, offers).

    `closest` is the offer that lacks the least memory, as a part of what it has; None where memory is in no one's way.
    """

    offers: tuple[Ranked, ...]
    left_out: tuple[tuple[str, int], ...]
    closest: TooSmall | None = None


def rank(prices: Iterable[Price], judge: Judge, limits: Limits, rates: Rates) -> Ranking:
    """Every offer with the number of machines for which the whole run costs least, ranked by that cost.

    A start is counted as long as a restart: else a short run would seem to cost nothing on a hundred GPUs.
    """
    found: list[Ranked] = []
    too_small: list[TooSmall] = []
    left_out: Counter[str] = Counter()
    for price in prices:
        if price.spot and not limits.spot:
            left_out["spot: --spot counts them too"] += 1
            continue
        tried = [_tried(price, machines, judge, limits, rates) for machines in _machines(price, limits)]
        fitting = [option for option in tried if isinstance(option, Ranked)]
        if fitting:
            found.append(min(fitting, key=lambda option: option.cost.usd.typical))
            continue
        too_small += [option for option in tried if isinstance(option, TooSmall)]
        left_out[_reason(tried, limits)] += 1
    found.sort(key=lambda option: (option.cost.usd.typical, option.cost.usd.high, option.price))
    closest = min(too_small, key=lambda option: option.judged.needed_gib / option.judged.usable_gib, default=None)
    return Ranking(tuple(found), tuple(left_out.most_common()), closest)


def _reason(tried: list[Ranked | TooSmall | str], limits: Limits) -> str:
    """Why none of what was tried of an offer will do."""
    if not tried:
        return f"more GPUs in one machine than {limits.gpus_max}"
    words = [option for option in tried if isinstance(option, str)]
    return words[0] if len(words) == len(tried) else "the run does not fit into the memory"


def _tried(price: Price, machines: int, judge: Judge, limits: Limits, rates: Rates) -> Ranked | TooSmall | str:
    """The offer, or why it is none."""
    gpus = price.gpus * machines
    if limits.max_usd_per_hour is not None and price.usd_per_hour * machines > limits.max_usd_per_hour:
        return f"above {limits.max_usd_per_hour:g} USD an hour"
    judged = judge(price.gpu, gpus)
    if isinstance(judged, Refused):
        return judged.why
    if not judged.fits:
        return TooSmall(price, machines, judged)
    work = Work(price.gpu, gpus, judged.steps, judged.step_s, limits.checkpoint_steps, start_s=rates.restart_s)
    return Ranked(price, machines, judged, cost_at(work, (price,), rates))


def _machines(price: Price, limits: Limits) -> Iterator[int]:
    """Numbers of machines to try: one, and doublings of whole machines where the cloud joins them into one run."""
    machines = 1
    while price.gpus * machines <= limits.gpus_max:
        yield machines
        if price.gpus < _WHOLE_MACHINE_GPUS or not joins(price.cloud):
            return
        machines *= 2


def joins(cloud: str) -> bool:
    """Whether machines of this cloud can be joined into one run; False of one that is not known."""
    return _clouds().get(cloud, False)


@cache
def _clouds() -> dict[str, bool]:
    document = tomli.loads(registry.data_file("clouds.toml").read_text(encoding="utf-8"))
    return {cloud["id"]: cloud["multi_node"] for cloud in document["cloud"]}
