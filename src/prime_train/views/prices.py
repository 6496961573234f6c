"""Renders prices and ranked offers as tables or JSON. Reads and writes no file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any

from prime_train.core.units import counted, format_seconds, format_usd
from prime_train.estimate.cost.offers import Judgement, RankedOffer, Ranking
from prime_train.estimate.values import Interval
from prime_train.estimate.verdict import Verdict
from prime_train.prices.price import STALE_DAYS, Price, age_days, day, is_stale
from prime_train.toml.document import to_toml
from prime_train.views.text import Paint, pick

GPU_HEADER = ("GPU", "KIND", "OFFERS", "LOW", "MEDIAN", "HIGH", "CHEAPEST AT", "SEEN")
GPU_RIGHT = frozenset({2, 3, 4, 5})
GPU_LEAST = (2, 4)  # columns that a narrow terminal leaves out, the first one first
OFFER_HEADER = ("PROVIDER", "KIND", "GPUS", "USD/GPU/H", "USD/H", "REGION", "SEEN", "SOURCE")
OFFER_RIGHT = frozenset({2, 3, 4})
OFFER_LEAST = (7, 4)

Seen = Callable[[str], str]


def seen_text(paint: Paint, today: date) -> Seen:
    """A function that shows the day of a price, in yellow if it is old or not known."""
    return lambda as_of: paint(as_of or "undated", "yellow") if is_stale(as_of, today) else as_of


def _plain(as_of: str) -> str:
    return as_of or "undated"


def kind(spot: bool) -> str:
    return "spot" if spot else "on-demand"


def gpu_rows(prices: Iterable[Price], seen: Seen = _plain) -> list[tuple[str, ...]]:
    """One row per GPU and kind under GPU_HEADER: lowest, median and highest price of a GPU hour."""
    groups: dict[tuple[str, bool], list[Price]] = {}
    for price in prices:
        groups.setdefault((price.gpu, price.spot), []).append(price)
    return [_gpu_row(groups[key], seen) for key in sorted(groups)]


def _gpu_row(offers: list[Price], seen: Seen) -> tuple[str, ...]:
    usd = sorted(price.usd_per_gpu_hour for price in offers)
    cheapest = min(offers, key=lambda price: price.usd_per_gpu_hour)
    at = f"{cheapest.provider} {format_usd(cheapest.usd_per_gpu_hour)} ({cheapest.gpus}x)"
    amounts = (format_usd(usd[0]), format_usd(statistics.median(usd)), format_usd(usd[-1]))
    return (offers[0].gpu, kind(offers[0].spot), str(len(offers)), *amounts, at, seen(_oldest(offers)))


def offer_rows(prices: Iterable[Price], seen: Seen = _plain) -> list[tuple[str, ...]]:
    """One row per offer under OFFER_HEADER, the cheapest GPU hour first."""
    return [
        (
            price.provider,
            kind(price.spot),
            str(price.gpus),
            format_usd(price.usd_per_gpu_hour),
            format_usd(price.usd_per_hour),
            price.region,
            seen(price.as_of),
            price.source,
        )
        for price in sorted(prices, key=lambda price: (price.spot, price.usd_per_gpu_hour, price))
    ]


def _oldest(offers: Sequence[Price]) -> str:
    """The oldest date; "" if an offer has none, which counts as older than all others."""
    return min(price.as_of for price in offers)


def stale_warning(prices: Sequence[Price], today: date) -> str | None:
    """A warning about prices that are old or of unknown age; None if all are recent."""
    stale = [price for price in prices if is_stale(price.as_of, today)]
    if not stale:
        return None
    undated = sum(not price.as_of for price in stale)
    old = len(stale) - undated
    parts = [f"{old} older than {STALE_DAYS} days"] * bool(old) + [f"{undated} of unknown age"] * bool(undated)
    ages = " and ".join(parts)
    return f"warning: {counted(len(prices), 'price')}, {ages}; to update: prime-train prices refresh"


def as_json(prices: Iterable[Price], today: date) -> dict[str, Any]:
    """The document of `prices show --json`."""
    rows = sorted(prices, key=lambda price: (price.gpu, price.spot, price.usd_per_gpu_hour, price))
    dates = sorted(price.as_of for price in rows if day(price.as_of) is not None)
    return {
        "version": 1,
        "prices": [offer_json(price, today) for price in rows],
        "oldest": dates[0] if dates else None,
        "stale": sum(is_stale(price.as_of, today) for price in rows),
        "stale_after_days": STALE_DAYS,
    }


def offer_json(price: Price, today: date) -> dict[str, Any]:
    """One offer, with its age in days or null."""
    return {
        **pick(price, "provider", "gpu", "gpus", "usd_per_gpu_hour"),
        "usd_per_hour": round(price.usd_per_hour, 4),
        "spot": price.spot,
        "region": price.region or None,
        "source": price.source,
        "as_of": price.as_of or None,
        "age_days": age_days(price.as_of, today),
        "stale": is_stale(price.as_of, today),
    }


RANKED_HEADER = ("", "OFFER", "AT", "KIND", "USD/H", "HOURS", "LOW", "TYPICAL", "HIGH", "MEMORY", "SEEN")
RANKED_RIGHT = frozenset({0, 4, 6, 7, 8, 9})
RANKED_LEAST = (9, 3, 10, 4)


def ranked_rows(offers: Sequence[RankedOffer], seen: Seen = _plain) -> list[tuple[str, ...]]:
    """One row per offer under RANKED_HEADER; LOW, TYPICAL and HIGH are the cost of the whole run."""
    return [_row(place, offer, seen) for place, offer in enumerate(offers, start=1)]


def _row(place: int, offer: RankedOffer, seen: Seen) -> tuple[str, ...]:
    price, usd, hours = offer.price, offer.cost.usd, offer.cost.run_hours
    machines = f"{offer.machines} x " if offer.machines > 1 else ""
    return (
        str(place),
        f"{machines}{price.gpus}x{price.gpu}",
        f"{price.provider} {price.region}".strip(),
        kind(price.spot),
        format_usd(offer.usd_per_hour),
        f"{_time(hours.low)} - {_time(hours.high)}",
        format_usd(usd.low),
        format_usd(usd.typical),
        format_usd(usd.high),
        _memory(offer.judgement),
        seen(price.as_of),
    )


def _memory(judgement: Judgement) -> str:
    """Examples: "61 of 79 GiB", "84 of 79 GiB, likely fits (probability 81 %)"."""
    needed = f"{judgement.needed_gib:.0f} of {judgement.usable_gib:.0f} GiB"
    return needed if judgement.chance.verdict is Verdict.FITS else f"{needed}, {judgement.chance.text}"


def _time(hours: float) -> str:
    return format_seconds(hours * 3600) if math.isfinite(hours) else "never"


def settings_line(ranking: Ranking, key: Callable[[str], str]) -> str:
    """The settings that the first offer needs in the config; "" if the config fits unchanged."""
    if not ranking.offers or not ranking.offers[0].judgement.settings:
        return ""
    settings = (
        f"no {key(field)}" if value is None else f"{key(field)} = {to_toml(value)}"
        for field, value in ranking.offers[0].judgement.settings
    )
    return f"settings for offer 1: {', '.join(settings)}"


def left_out_lines(ranking: Ranking, shown: int = 8) -> list[str]:
    """Why other offers are not in the table; the most common reason first."""
    lines = [f"{counted(count, 'offer')} left out: {why}" for why, count in ranking.left_out[:shown]]
    more = sum(count for _, count in ranking.left_out[shown:])
    return [*lines, f"{counted(more, 'offer')} left out for other reasons"] if more else lines


def find_json(title: str, ranking: Ranking, today: date, key: Callable[[str], str] = str) -> dict[str, Any]:
    """The document of `find --json`; `key` turns a RunSpec field into the user's own key."""
    return {
        "version": 1,
        "run": title,
        "offers": [_ranked_json(place, offer, today, key) for place, offer in enumerate(ranking.offers, start=1)],
        "left_out": [{"why": why, "offers": count} for why, count in ranking.left_out],
    }


def _ranked_json(place: int, offer: RankedOffer, today: date, key: Callable[[str], str]) -> dict[str, Any]:
    cost, judgement = offer.cost, offer.judgement
    return {
        "rank": place,
        **offer_json(offer.price, today),
        "machines": offer.machines,
        "gpus_in_all": offer.gpus,
        "usd_per_hour_in_all": round(offer.usd_per_hour, 4),
        "memory": {"needed_gib": round(judgement.needed_gib, 1), "usable_gib": round(judgement.usable_gib, 1)},
        "verdict": judgement.chance.verdict.value,
        "probability": round(judgement.chance.probability, 3),
        "settings": {key(field): value for field, value in judgement.settings},
        "steps": judgement.steps,
        "step_s": interval(judgement.step_s, 3),
        "run_hours": interval(cost.run_hours, 3),
        "gpu_hours": interval(cost.gpu_hours, 2),
        "usd": interval(cost.usd, 2),
        "interruptions": interval(cost.interruptions, 3),
        "lost_gpu_hours": interval(cost.lost_gpu_hours, 3),
    }


def interval(values: Interval, digits: int) -> dict[str, float | None]:
    """low, typical, high; null if the run would never end."""
    return {name: round(value, digits) if math.isfinite(value) else None for name, value in values._asdict().items()}
