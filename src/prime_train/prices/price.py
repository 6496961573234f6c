"""Defines a row of the price table, checks its numbers, and parses and formats the table. Pure; reads no file.

A wrong number in a source (NaN, zero, negative) is reported with its place and never repaired, because a table with
such a row would rank it first.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple, ParamSpec, TypeVar

import tomli

from prime_train.registry import gpus as gpu_registry
from prime_train.toml.did_you_mean import nearest

# Bounds of a GPU hour in USD, about ten times beyond the cheapest and the most expensive of registry/offers.toml (0.12
# and 6.99). A price outside them is in cents, per month or for a whole cluster.
LOWEST_USD_PER_GPU_HOUR = 0.01
HIGHEST_USD_PER_GPU_HOUR = 100.0
MOST_GPUS = 1024  # in one offer
STALE_DAYS = 30

_AS_OF = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")


class Price(NamedTuple):
    """What one GPU costs for an hour at one provider, in offers of `gpus` GPUs.

    `provider` is SkyPilot's name of the cloud and, after a slash, the owner of the machine ("primeintellect/nebius").
    `gpu` is an id of registry/gpus.toml. `as_of` is a day, a month ("2026-04") or "" if the source has no date.
    """

    provider: str
    gpu: str
    gpus: int
    usd_per_gpu_hour: float
    spot: bool
    region: str
    source: str
    as_of: str

    @property
    def usd_per_hour(self) -> float:
        """USD per hour of one offer with all its GPUs."""
        return self.usd_per_gpu_hour * self.gpus

    @property
    def cloud(self) -> str:
        """The provider without the owner of the machine."""
        return self.provider.partition("/")[0]


@dataclass(eq=False)
class PriceFault(Exception):
    """A value that is not accepted: where ("vms.csv line 7, column Price"), what, why."""

    where: str
    what: str
    why: str


class PriceRows(NamedTuple):
    """The content of a document: prices, faults, and rows that were left out, as (why, number of rows)."""

    prices: tuple[Price, ...]
    faults: tuple[PriceFault, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()


def number(value: object, where: str) -> float:
    """A positive finite number from a number or its text. Raises Fault for anything else."""
    shown = _short_repr(value)
    try:
        # bool is a number in Python, but not a price
        found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise PriceFault(where, f"{shown} is not a number", "it must be a price in USD") from None
    if not math.isfinite(found):
        raise PriceFault(where, f"{shown} is not a finite number", "it cannot be compared with other prices")
    if found <= 0:
        raise PriceFault(where, f"{shown} is not above zero", "no cloud offers GPUs for free")
    return found


def count(value: object, where: str) -> int:
    """A whole number of GPUs from 8, 8.0 or their text. Raises Fault for anything else."""
    found = number(value, where)
    if found != int(found) or found > MOST_GPUS:
        why = f"an offer has a whole number of GPUs, at most {MOST_GPUS}"
        raise PriceFault(where, f"{_short_repr(value)} GPUs", why)
    return int(found)


def finite_positive(value: object) -> float | None:
    """A positive finite number, such as a memory size beside a price; None for anything else."""
    try:
        return number(value, "") if isinstance(value, int | float) else None
    except PriceFault:
        return None


def per_gpu_hour(usd_per_hour: object, gpus: int, where: str) -> float:
    """USD per hour of one GPU, from the price of an offer of `gpus` GPUs. Raises Fault for an implausible price."""
    found = number(usd_per_hour, where) / gpus
    if not LOWEST_USD_PER_GPU_HOUR <= found <= HIGHEST_USD_PER_GPU_HOUR:
        why = f"a GPU hour costs between {LOWEST_USD_PER_GPU_HOUR:g} and {HIGHEST_USD_PER_GPU_HOUR:g} USD"
        raise PriceFault(where, f"{found:g} USD for one GPU hour", why)
    return found


def day(as_of: str) -> date | None:
    """The day of an `as_of`: the first of the month if it is a month; None if it is "".

    Raises ValueError for other text.
    """
    if not as_of:
        return None
    match = _AS_OF.fullmatch(as_of)
    if match is None:
        raise ValueError(f"{as_of!r} is neither YYYY-MM-DD nor YYYY-MM")
    return date(int(match[1]), int(match[2]), int(match[3] or 1))


def age_days(as_of: str, today: date) -> int | None:
    """Days since the price was seen; None if its source has no date."""
    seen = day(as_of)
    return None if seen is None else (today - seen).days


def is_stale(as_of: str, today: date) -> bool:
    """Whether a price is older than STALE_DAYS, or its age is not known."""
    age = age_days(as_of, today)
    return age is None or age > STALE_DAYS


def _short_repr(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of more than 18 digits"  # Python refuses to print one with thousands of digits
    return repr(value)[:80]


_NAMED = 2  # regions that are named; the others are counted
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST = 60
_P = ParamSpec("_P")
_T = TypeVar("_T")


def catch(read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | PriceFault:
    """What `read` returns, or the Fault that it raises."""
    try:
        return read(*args, **kwargs)
    except PriceFault as fault:
        return fault


def gather_rows(found: Iterable[Price | PriceFault | str]) -> PriceRows:
    """The rows of a document, given per offer a price, a fault, or why the offer is left out."""
    prices: list[Price] = []
    faults: list[PriceFault] = []
    left_out: Counter[str] = Counter()
    for item in found:
        match item:
            case Price():
                prices.append(item)
            case PriceFault():
                faults.append(item)
            case str():
                left_out[item] += 1
    return PriceRows(merge_regions(prices), tuple(faults), tuple(left_out.most_common()))


def merge_regions(prices: Iterable[Price]) -> tuple[Price, ...]:
    """One row for offers of the same provider, GPU, count and price; `region` names some and counts the others."""
    places: dict[Price, dict[str, None]] = {}
    for price in prices:
        places.setdefault(price._replace(region=""), {})[clean_text(price.region)] = None
    return tuple(price._replace(region=_join_names([*filter(None, names)])) for price, names in places.items())


def clean_text(text: str, longest: int = _LONGEST) -> str:
    """External text without control characters, cut to `longest` characters."""
    return _CONTROL.sub(" ", text).strip(" ,")[:longest]


def _join_names(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" +{more}" if more > 0 else "")


_ROW = re.compile(r"^[ \t]*\[\[[ \t]*price[ \t]*\]\]", re.MULTILINE)
_REQUIRED = ("provider", "gpu", "gpus", "usd_per_gpu_hour", "source")
_OPTIONAL = ("spot", "region", "as_of")
_FORMAT = "a price table is TOML with one [[price]] per row"
_HEAD = """# GPU prices. One [[price]] per offer; usd_per_gpu_hour is of one GPU, gpus how many are rented together.
# as_of is the day or the month on which the price was seen; unset if its source has no date.
"""


def parse_table(text: str, shown: str, today: date) -> PriceRows:
    """The rows of a table. Raises Fault if the text is not a price table."""
    try:
        document = tomli.loads(text)
    except (ValueError, RecursionError) as error:  # tomli's own error, and a number with more digits than Python reads
        raise PriceFault(shown, f"not TOML: {error}", _FORMAT) from None
    entries = document.get("price")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PriceFault(shown, "no [[price]] in it", _FORMAT)
    lines = [text.count("\n", 0, match.start()) + 1 for match in _ROW.finditer(text)]
    lines += [0] * (len(entries) - len(lines))  # inline rows (price = [{...}]) have no [[price]] line
    rows = [
        catch(_row, entry, f"{shown} line {line}" if line else f"{shown} price {index}", today)
        for index, (entry, line) in enumerate(zip(entries, lines, strict=False), start=1)
    ]
    return PriceRows(
        tuple(row for row in rows if isinstance(row, Price)), tuple(row for row in rows if isinstance(row, PriceFault))
    )


def format_table(prices: Iterable[Price]) -> str:
    """The text of a table with these rows, the cheapest of each GPU first."""
    ordered = sorted(prices, key=lambda price: (price.gpu, price.spot, price.usd_per_gpu_hour, price))
    return _HEAD + "".join(_entry(price) for price in ordered)


def _entry(price: Price) -> str:
    lines = ["", "[[price]]"]
    for name in ("provider", "gpu", "gpus", "usd_per_gpu_hour", "spot", "region", "source", "as_of"):
        value = getattr(price, name)
        if value in ("", False):
            continue
        # JSON strings are TOML strings, except for the control character that JSON does not escape.
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False).replace(chr(127), '')}")
    return "\n".join(lines) + "\n"


def _row(entry: Mapping[str, Any], where: str, today: date) -> Price:
    _check_columns(entry, where)
    gpus = count(entry["gpus"], f"{where}, column gpus")
    usd = per_gpu_hour(entry["usd_per_gpu_hour"], 1, f"{where}, column usd_per_gpu_hour")
    as_of = entry.get("as_of", "")
    as_of = as_of.isoformat() if isinstance(as_of, date) else as_of
    _check_date(as_of, f"{where}, column as_of", today)
    region, source = clean_text(entry.get("region", "")), clean_text(entry["source"], 200)
    return Price(entry["provider"], entry["gpu"], gpus, usd, entry.get("spot", False), region, source, as_of)


def _check_columns(entry: Mapping[str, Any], where: str) -> None:
    """Checks the columns of a row, before its numbers are checked."""
    known = (*_REQUIRED, *_OPTIONAL)
    for name in entry:
        if name not in known:
            meant = nearest(name, known)
            why = f"did you mean {meant}?" if meant else f"the columns are {', '.join(known)}"
            raise PriceFault(f"{where}, column {name}", f"unknown column {name}", why)
    missing = [name for name in _REQUIRED if name not in entry]
    if missing:
        raise PriceFault(where, f"no {', '.join(missing)}", f"each row has {', '.join(_REQUIRED)}")
    for name in ("provider", "gpu", "source", "region"):
        if not isinstance(entry.get(name, ""), str) or (name in _REQUIRED and not entry[name]):
            raise PriceFault(f"{where}, column {name}", f"{entry[name]!r} is not a name", "it must be a non-empty text")
    if not isinstance(entry.get("spot", False), bool):
        raise PriceFault(f"{where}, column spot", f"{entry['spot']!r}", "it must be true or false")
    ids = [gpu.id for gpu in gpu_registry.gpu_peaks()]
    if entry["gpu"] not in ids:
        meant = nearest(entry["gpu"], ids)
        why = f"did you mean {meant}?" if meant else "it must be an id of registry/gpus.toml: " + ", ".join(sorted(ids))
        raise PriceFault(f"{where}, column gpu", f"no GPU is called {entry['gpu']!r}", why)


def _check_date(as_of: object, where: str, today: date) -> None:
    try:
        age = age_days(as_of, today) if isinstance(as_of, str) else -1
    except ValueError as error:
        raise PriceFault(where, str(error), "the age of the price is counted from it") from None
    if age is not None and age < 0:
        raise PriceFault(where, f"{as_of} is not a day up to today", "prices are not from the future")
