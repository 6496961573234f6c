"""Makes the documents of prices and of ranked offers, and renders them as tables. Reads and writes no file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from prime_train.core.units import counted, format_count, format_seconds, format_usd
from prime_train.estimate.cost.offers import RankedOffer, Ranking
from prime_train.estimate.relayout import TrainedWork
from prime_train.estimate.verdict import MemoryVerdict
from prime_train.prices.price import STALE_DAYS, Price, age_days, day, is_stale
from prime_train.toml.document import to_toml
from prime_train.views.estimate.document import chance_json, interval_json, six_digits
from prime_train.views.estimate.text import chance_text
from prime_train.views.findings import plain
from prime_train.views.text import Paint, pick

GPU_HEADER = ("GPU", "KIND", "OFFERS", "LOW", "MEDIAN", "HIGH", "CHEAPEST AT", "SEEN")
GPU_RIGHT = frozenset({2, 3, 4, 5})
GPU_LEAST = (2, 4)  # columns that a narrow terminal leaves out, the first one first
OFFER_HEADER = ("PROVIDER", "KIND", "GPUS", "USD/GPU/H", "USD/H", "REGION", "SEEN", "SOURCE")
OFFER_RIGHT = frozenset({2, 3, 4})
OFFER_LEAST = (7, 4)
RANKED_HEADER = ("", "OFFER", "AT", "KIND", "USD/H", "HOURS", "LOW", "TYPICAL", "HIGH", "MEMORY", "SEEN")
RANKED_RIGHT = frozenset({0, 4, 6, 7, 8, 9})
RANKED_LEAST = (9, 3, 10, 4)

Offer = Mapping[str, Any]  # an entry of "prices" or "offers"


def as_json(prices: Iterable[Price], today: date) -> dict[str, Any]:
    """The document of `prices show --json`."""
    rows = sorted(prices, key=lambda price: (price.gpu, price.spot, price.usd_per_gpu_hour, price))
    dates = sorted(price.as_of for price in rows if day(price.as_of) is not None)
    return {
        "version": 1,
        "prices": [_offer_json(price, today) for price in rows],
        "oldest": dates[0] if dates else None,
        "stale": sum(is_stale(price.as_of, today) for price in rows),
        "stale_after_days": STALE_DAYS,
    }


def _offer_json(price: Price, today: date) -> dict[str, Any]:
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


def find_json(
    title: str, work: TrainedWork, ranking: Ranking, today: date, key: Callable[[str], str] = str
) -> dict[str, Any]:
    """The document of `find --json`; `key` turns a RunSpec field into the user's own key."""
    return {
        "version": 1,
        "run": title,
        "work": {**_work_json(work), "assumed": work.assumed or None},
        "offers": [_ranked_json(place, offer, today, key) for place, offer in enumerate(ranking.offers, start=1)],
        "left_out": [{"why": why, "offers": count} for why, count in ranking.left_out],
    }


def _work_json(work: TrainedWork) -> dict[str, Any]:
    """Steps and tokens; tokens are null where their number is not known before the run."""
    batch = work.batch
    return {
        "steps": work.steps,
        "sequences_per_step": batch.sequences if batch is not None else None,
        "tokens_per_step": batch.tokens if batch is not None else None,
        "tokens": work.tokens,
    }


def _ranked_json(place: int, offer: RankedOffer, today: date, key: Callable[[str], str]) -> dict[str, Any]:
    cost, judgement = offer.cost, offer.judgement
    intervals = pick(cost, "run_hours", "gpu_hours", "usd", "interruptions", "lost_gpu_hours")
    return {
        "rank": place,
        **_offer_json(offer.price, today),
        "machines": offer.machines,
        "gpus_in_all": offer.gpus,
        "usd_per_hour_in_all": round(offer.usd_per_hour, 4),
        "memory": {name: six_digits(gib) for name, gib in pick(judgement, "needed_gib", "usable_gib").items()},
        **chance_json(judgement.chance),
        "settings": {key(field): value for field, value in judgement.settings},
        **_work_json(judgement.work),
        "step_s": interval_json(judgement.step_s),
        **{name: interval_json(interval) for name, interval in intervals.items()},
    }


def gpu_rows(document: Mapping[str, Any], paint: Paint = plain) -> list[tuple[str, ...]]:
    """One row per GPU and kind under GPU_HEADER: lowest, median and highest price of a GPU hour."""
    groups: dict[tuple[str, bool], list[Offer]] = {}
    for offer in document["prices"]:
        groups.setdefault((offer["gpu"], offer["spot"]), []).append(offer)
    return [_gpu_row(offers, paint) for offers in groups.values()]


def _gpu_row(offers: Sequence[Offer], paint: Paint) -> tuple[str, ...]:
    """`offers` are of one GPU, the cheapest first. An offer without a date counts as older than all others."""
    usd = [offer["usd_per_gpu_hour"] for offer in offers]
    cheapest, oldest = offers[0], min(offers, key=lambda offer: offer["as_of"] or "")
    at = f"{cheapest['provider']} {format_usd(usd[0])} ({cheapest['gpus']}x)"
    amounts = (format_usd(usd[0]), format_usd(statistics.median(usd)), format_usd(usd[-1]))
    return (cheapest["gpu"], _kind(cheapest), str(len(offers)), *amounts, at, _seen(oldest, paint))


def offer_rows(document: Mapping[str, Any], paint: Paint = plain) -> list[tuple[str, ...]]:
    """One row per offer under OFFER_HEADER, the cheapest GPU hour first."""
    return [
        (
            offer["provider"],
            _kind(offer),
            str(offer["gpus"]),
            format_usd(offer["usd_per_gpu_hour"]),
            format_usd(offer["usd_per_hour"]),
            offer["region"] or "",
            _seen(offer, paint),
            offer["source"],
        )
        for offer in document["prices"]
    ]


def _kind(offer: Offer) -> str:
    return "spot" if offer["spot"] else "on-demand"


def _seen(offer: Offer, paint: Paint) -> str:
    """The day of a price, in yellow if it is old or not known."""
    seen = offer["as_of"] or "undated"
    return paint(seen, "yellow") if offer["stale"] else seen


def stale_warning(offers: Sequence[Offer]) -> str | None:
    """A warning about offers whose price is old or of unknown age; None if all are recent."""
    stale = [offer for offer in offers if offer["stale"]]
    if not stale:
        return None
    undated = sum(not offer["as_of"] for offer in stale)
    old = len(stale) - undated
    parts = [f"{old} older than {STALE_DAYS} days"] * bool(old) + [f"{undated} of unknown age"] * bool(undated)
    ages = " and ".join(parts)
    return f"warning: {counted(len(offers), 'price')}, {ages}; to update: prime-train prices refresh"


def ranked_rows(document: Mapping[str, Any], most: int, paint: Paint = plain) -> list[tuple[str, ...]]:
    """At most `most` rows under RANKED_HEADER; LOW, TYPICAL and HIGH are the cost of the whole run."""
    return [_ranked_row(offer, document["work"], paint) for offer in document["offers"][:most]]


def _ranked_row(offer: Offer, work: Mapping[str, Any], paint: Paint) -> tuple[str, ...]:
    usd, hours = offer["usd"], offer["run_hours"]
    machines = f"{offer['machines']} x " if offer["machines"] > 1 else ""
    return (
        str(offer["rank"]),
        f"{machines}{offer['gpus']}x{offer['gpu']}{_other_steps(offer, work)}",
        f"{offer['provider']} {offer['region'] or ''}".strip(),
        _kind(offer),
        format_usd(offer["usd_per_hour_in_all"]),
        f"{_time(hours['low'])} - {_time(hours['high'])}",
        *(format_usd(math.inf if usd[bound] is None else usd[bound]) for bound in ("low", "typical", "high")),
        _memory(offer),
        _seen(offer, paint),
    )


def _other_steps(offer: Offer, work: Mapping[str, Any]) -> str:
    """The steps that were priced, where they are not those of the config."""
    if offer["steps"] == work["steps"]:
        return ""
    return f", {offer['steps']:,} steps of {offer['sequences_per_step']:,}"


def work_line(document: Mapping[str, Any]) -> str:
    """What every offer trains: "100 steps of 16 sequences, 3.3 M tokens on each offer"."""
    work = document["work"]
    line = f"priced: {work['steps']:,} steps"
    if work["sequences_per_step"] is not None:
        line += f" of {counted(work['sequences_per_step'], 'sequence')}"
    if work["tokens"] is not None:
        line += f", {format_count(work['tokens'])} tokens on each offer"
    return f"{line} ({work['assumed']})" if work["assumed"] else line


def _memory(offer: Offer) -> str:
    """Examples: "61 of 79 GiB", "84 of 79 GiB, likely fits (probability 81 %)"."""
    needed = f"{offer['memory']['needed_gib']:.0f} of {offer['memory']['usable_gib']:.0f} GiB"
    return needed if offer["verdict"] == MemoryVerdict.FITS else f"{needed}, {chance_text(offer)}"


def _time(hours: float | None) -> str:
    return "never" if hours is None else format_seconds(hours * 3600)


def settings_line(document: Mapping[str, Any]) -> str:
    """The settings that the first offer needs in the config; "" if the config fits unchanged."""
    if not document["offers"] or not document["offers"][0]["settings"]:
        return ""
    wanted = document["offers"][0]["settings"].items()
    settings = (f"no {key}" if value is None else f"{key} = {to_toml(value)}" for key, value in wanted)
    return f"settings for offer 1: {', '.join(settings)}"


def left_out_lines(document: Mapping[str, Any], shown: int = 8) -> list[str]:
    """Why other offers are not in the table; the most common reason first."""
    left_out = document["left_out"]
    lines = [f"{counted(one['offers'], 'offer')} left out: {one['why']}" for one in left_out[:shown]]
    more = sum(one["offers"] for one in left_out[shown:])
    return [*lines, f"{counted(more, 'offer')} left out for other reasons"] if more else lines
