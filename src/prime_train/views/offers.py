"""Renders ranked offers as a table or JSON; each total is three figures. Reads and writes no file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from prime_train.document import to_toml
from prime_train.units import counted, format_seconds, format_usd
from prime_train.views.prices import kind, offer_json

if TYPE_CHECKING:
    from prime_train.estimate.offers import RankedOffer, Ranking
    from prime_train.estimate.values import Interval

RANKED_HEADER = ("", "OFFER", "AT", "KIND", "USD/H", "HOURS", "LOW", "TYPICAL", "HIGH", "MEMORY", "SEEN")
RANKED_RIGHT = frozenset({0, 4, 6, 7, 8, 9})


def ranked_rows(offers: Sequence[RankedOffer]) -> list[tuple[str, ...]]:
    """One row per offer under RANKED_HEADER; LOW, TYPICAL and HIGH are the cost of the whole run."""
    return [_row(place, offer) for place, offer in enumerate(offers, start=1)]


def _row(place: int, offer: RankedOffer) -> tuple[str, ...]:
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
        f"{offer.judgement.needed_gib:.0f} of {offer.judgement.usable_gib:.0f} GiB",
        price.as_of or "undated",
    )


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
    return {
        name: round(value, digits) if math.isfinite(value) else None
        for name, value in zip(("low", "typical", "high"), values, strict=True)
    }
