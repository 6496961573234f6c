"""Computes what a run costs: GPU hours, interruptions included, times prices. Always an interval. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from prime_train.estimate.values import ZERO, Interval
from prime_train.prices.price import Price, day
from prime_train.registry.gpus import read_table

_MANY = 10  # from this many offers on, the lowest and the highest tenth are left out
_ENOUGH = 3  # with this many offers of the wanted size, offers of other sizes are ignored
_MACHINE_GPUS = 8  # GPUs of the largest machine that clouds commonly offer


class PricedWork(NamedTuple):
    """A run on `gpus` GPUs of one type. `checkpoint_steps`: steps between checkpoints (None: only at the end).

    `start_s` is billed once before the first step, while the machine boots, installs and downloads.
    """

    gpu: str
    gpus: int
    steps: int
    step_s: Interval
    checkpoint_steps: int | None
    start_s: Interval = ZERO


class Cost(NamedTuple):
    """USD of a whole run, interruptions included.

    `usd.low` combines the low price with the low hours, `usd.high` the high ones. `prices_as_of` is the day of the
    oldest dated price, None if no price is dated; `undated` counts the prices without a date.
    """

    spot: bool
    offers: int
    usd_per_gpu_hour: Interval
    gpu_hours: Interval
    usd: Interval
    run_hours: Interval  # from start to end
    interruptions: Interval
    lost_gpu_hours: Interval
    prices_as_of: str | None
    undated: int
    sources: tuple[str, ...]


def price_interval(usd: Sequence[float]) -> Interval:
    """Lowest, median and highest price; from ten prices on the first and last tenth. Raises ValueError for no price."""
    if not usd:
        raise ValueError("no price")
    middle = statistics.median(usd)
    if len(usd) < _MANY:
        return Interval(min(usd), middle, max(usd))
    tenths = statistics.quantiles(usd, n=10, method="inclusive")
    return Interval(min(tenths[0], middle), middle, max(tenths[-1], middle))  # rounding separates equal prices


def cost_of(work: PricedWork, prices: Iterable[Price], rates: InterruptionRates, *, spot: bool) -> Cost | None:
    """The cost of the run at the prices of its GPU; None if there is no such price."""
    offers = _select_offers([price for price in prices if price.gpu == work.gpu and price.spot is spot], work.gpus)
    return cost_at(work, offers, rates) if offers else None


def cost_at(work: PricedWork, offers: Sequence[Price], rates: InterruptionRates) -> Cost:
    """The cost of the run at these offers, all spot or all on-demand. Raises ValueError for no offer."""
    usd_per_gpu_hour = price_interval([price.usd_per_gpu_hour for price in offers])
    spot = offers[0].spot
    per_hour = rates.per_hour(work.gpus, spot=spot)
    cases = zip(work.step_s, per_hour, rates.restart_s, strict=True)
    ends = [_interrupt(work, *case) for case in cases]  # at best, typically, and at worst
    run_hours = Interval(*((start_s + end.run_s) / 3600 for start_s, end in zip(work.start_s, ends, strict=True)))
    gpu_hours = run_hours.times(work.gpus)
    dates = sorted(price.as_of for price in offers if day(price.as_of) is not None)
    return Cost(
        spot=spot,
        offers=len(offers),
        usd_per_gpu_hour=usd_per_gpu_hour,
        gpu_hours=gpu_hours,
        usd=Interval(*(usd * hours for usd, hours in zip(usd_per_gpu_hour, gpu_hours, strict=True))),
        run_hours=run_hours,
        interruptions=Interval(*(end.interruptions for end in ends)),
        lost_gpu_hours=Interval(*(end.lost_s * work.gpus / 3600 for end in ends)),
        prices_as_of=dates[0] if dates else None,
        undated=len(offers) - len(dates),
        sources=tuple(sorted({price.source for price in offers})),
    )


def _interrupt(work: PricedWork, step_s: float, per_hour: float, restart_s: float) -> InterruptedRun:
    between_s = None if work.checkpoint_steps is None else work.checkpoint_steps * step_s
    return expect_interruptions(UninterruptedRun(work.steps * step_s, between_s), per_hour, restart_s)


def _select_offers(offers: list[Price], gpus: int) -> list[Price]:
    """Offers of the wanted size; all offers if those are too few to show a spread."""
    same = [price for price in offers if price.gpus == min(gpus, _MACHINE_GPUS)]
    return same if len(same) >= _ENOUGH else offers


_HOUR_S = 3600.0
_NEVER_PER_HOUR = 1e-12  # once in a hundred million years
_HOPELESS = math.log(1000)  # one attempt in a thousand reaches the next checkpoint: the run counts as endless


class InterruptionRates(NamedTuple):
    """Interruption rates. `spot`: per offer and hour; `on_demand`: per GPU and hour; `restart_s`: billed seconds."""

    spot: Interval
    on_demand: Interval
    restart_s: Interval
    sources: tuple[str, ...] = ()

    def per_hour(self, gpus: int, *, spot: bool) -> Interval:
        """Interruptions of the run per hour. Spot machines of one zone stop together, so their number is ignored."""
        return self.spot if spot else self.on_demand.times(gpus)


class UninterruptedRun(NamedTuple):
    """The run without interruptions. `checkpoint_s`: seconds of work between checkpoints (None: only at the end).

    `save_s`: seconds that a checkpoint stops the training, near zero if it is written in the background.
    """

    solve_s: float
    checkpoint_s: float | None
    save_s: float = 0.0


class InterruptedRun(NamedTuple):
    """The expected run: total seconds, interruptions, and seconds of repeated work and restarts.

    All three are infinite if fewer than one attempt in a thousand reaches the next checkpoint.
    """

    run_s: float
    interruptions: float
    lost_s: float


@cache
def shipped_rates() -> InterruptionRates:
    """The rates of registry/interruptions.toml."""
    table, names = read_table("interruptions.toml"), ("spot", "on_demand", "restart_s")
    spot, on_demand, restart_s = (
        Interval(*(float(table[name][end]) for end in ("low", "typical", "high"))) for name in names
    )
    return InterruptionRates(spot, on_demand, restart_s, tuple(f"{name}: {table[name]['source']}" for name in names))


def expect_interruptions(run: UninterruptedRun, per_hour: float, restart_s: float) -> InterruptedRun:
    """Daly's complete cost function: M e^(R/M) (e^((tau + delta)/M) - 1) T/tau, with M = 1 / rate.

    tau is the work between checkpoints, delta the save, R the restart, T the run without interruptions.
    """
    stretch_s = min(run.checkpoint_s or run.solve_s, run.solve_s)
    saves_s = run.save_s * (run.solve_s / stretch_s) if stretch_s > 0 else 0.0
    if per_hour < _NEVER_PER_HOUR or stretch_s <= 0:
        return InterruptedRun(run.solve_s + saves_s, 0.0, 0.0)
    between_s = _HOUR_S / per_hour
    if (stretch_s + run.save_s + restart_s) / between_s > _HOPELESS:
        return InterruptedRun(math.inf, math.inf, math.inf)
    attempts = math.exp(restart_s / between_s) * math.expm1((stretch_s + run.save_s) / between_s)
    # Rounding errors must not make a run with rare interruptions shorter.
    run_s = max(between_s * attempts * run.solve_s / stretch_s, run.solve_s + saves_s)
    return InterruptedRun(run_s, run_s / between_s, max(0.0, run_s - run.solve_s - saves_s))
