"""Renders prices and ranked offers as tables or JSON. Reads and writes no file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from prime_train.estimate.run_cost import price_interval
from prime_train.prices.price import STALE_DAYS, Price, age_days, day, is_stale
from prime_train.units import counted, format_usd

GPU_HEADER = ("GPU", "KIND", "OFFERS", "LOW", "MEDIAN", "HIGH", "CHEAPEST AT", "SEEN")
GPU_RIGHT = frozenset({2, 3, 4, 5})
OFFER_HEADER = ("PROVIDER", "KIND", "GPUS", "USD/GPU/H", "USD/H", "REGION", "SEEN", "SOURCE")
OFFER_RIGHT = frozenset({2, 3, 4})


def kind(spot: bool) -> str:
    return "spot" if spot else "on-demand"


def gpu_rows(prices: Iterable[Price]) -> list[tuple[str, ...]]:
    """One row per GPU and kind under GPU_HEADER; prices are per GPU hour."""
    groups: dict[tuple[str, bool], list[Price]] = {}
    for price in prices:
        groups.setdefault((price.gpu, price.spot), []).append(price)
    return [_gpu_row(groups[key]) for key in sorted(groups)]


def _gpu_row(offers: list[Price]) -> tuple[str, ...]:
    usd = price_interval([price.usd_per_gpu_hour for price in offers])
    cheapest = min(offers, key=lambda price: price.usd_per_gpu_hour)
    at = f"{cheapest.provider} {format_usd(cheapest.usd_per_gpu_hour)} ({cheapest.gpus}x)"
    amounts = (format_usd(usd.low), format_usd(usd.typical), format_usd(usd.high))
    return (offers[0].gpu, kind(offers[0].spot), str(len(offers)), *amounts, at, _seen(offers))


def offer_rows(prices: Iterable[Price]) -> list[tuple[str, ...]]:
    """One row per offer under OFFER_HEADER, the cheapest GPU hour first."""
    return [
        (
            price.provider,
            kind(price.spot),
            str(price.gpus),
            format_usd(price.usd_per_gpu_hour),
            format_usd(price.usd_per_hour),
            price.region,
            price.as_of or "undated",
            price.source,
        )
        for price in sorted(prices, key=lambda price: (price.spot, price.usd_per_gpu_hour, price))
    ]


def _seen(offers: Sequence[Price]) -> str:
    """The oldest date; an offer without a date counts as older than all others."""
    return "undated" if any(not price.as_of for price in offers) else min(price.as_of for price in offers)


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
        "provider": price.provider,
        "gpu": price.gpu,
        "gpus": price.gpus,
        "usd_per_gpu_hour": price.usd_per_gpu_hour,
        "usd_per_hour": round(price.usd_per_hour, 4),
        "spot": price.spot,
        "region": price.region or None,
        "source": price.source,
        "as_of": price.as_of or None,
        "age_days": age_days(price.as_of, today),
        "stale": is_stale(price.as_of, today),
    }
