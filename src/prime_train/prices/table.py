"""Parses and formats the price table: TOML with one [[price]] per row. Pure; opens no file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

import tomli

from prime_train.prices.price import Fault, Price, Rows, age_days, catch, clean_text, count, per_gpu_hour
from prime_train.registry import gpus as gpu_registry
from prime_train.toml.did_you_mean import nearest

_ROW = re.compile(r"^[ \t]*\[\[[ \t]*price[ \t]*\]\]", re.MULTILINE)
_REQUIRED = ("provider", "gpu", "gpus", "usd_per_gpu_hour", "source")
_OPTIONAL = ("spot", "region", "as_of")
_FORMAT = "a price table is TOML with one [[price]] per row"
_HEAD = """# GPU prices. One [[price]] per offer; usd_per_gpu_hour is of one GPU, gpus how many are rented together.
# as_of is the day or the month on which the price was seen; unset if its source has no date.
"""


def parse_table(text: str, shown: str, today: date) -> Rows:
    """The rows of a table. Raises Fault if the text is not a price table."""
    try:
        document = tomli.loads(text)
    except (ValueError, RecursionError) as error:  # tomli's own error, and a number with more digits than Python reads
        raise Fault(shown, f"not TOML: {error}", _FORMAT) from None
    entries = document.get("price")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Fault(shown, "no [[price]] in it", _FORMAT)
    lines = [text.count("\n", 0, match.start()) + 1 for match in _ROW.finditer(text)]
    lines += [0] * (len(entries) - len(lines))  # inline rows (price = [{...}]) have no [[price]] line
    rows = [
        catch(_row, entry, f"{shown} line {line}" if line else f"{shown} price {index}", today)
        for index, (entry, line) in enumerate(zip(entries, lines, strict=False), start=1)
    ]
    return Rows(
        tuple(row for row in rows if isinstance(row, Price)),
        tuple(row for row in rows if isinstance(row, Fault)),
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
            raise Fault(f"{where}, column {name}", f"unknown column {name}", why)
    missing = [name for name in _REQUIRED if name not in entry]
    if missing:
        raise Fault(where, f"no {', '.join(missing)}", f"each row has {', '.join(_REQUIRED)}")
    for name in ("provider", "gpu", "source", "region"):
        if not isinstance(entry.get(name, ""), str) or (name in _REQUIRED and not entry[name]):
            raise Fault(f"{where}, column {name}", f"{entry[name]!r} is not a name", "it must be a non-empty text")
    if not isinstance(entry.get("spot", False), bool):
        raise Fault(f"{where}, column spot", f"{entry['spot']!r}", "it must be true or false")
    ids = [gpu.id for gpu in gpu_registry.gpu_peaks()]
    if entry["gpu"] not in ids:
        meant = nearest(entry["gpu"], ids)
        why = f"did you mean {meant}?" if meant else "it must be an id of registry/gpus.toml: " + ", ".join(sorted(ids))
        raise Fault(f"{where}, column gpu", f"no GPU is called {entry['gpu']!r}", why)


def _check_date(as_of: object, where: str, today: date) -> None:
    try:
        age = age_days(as_of, today) if isinstance(as_of, str) else -1
    except ValueError as error:
        raise Fault(where, str(error), "the age of the price is counted from it") from None
    if age is not None and age < 0:
        raise Fault(where, f"{as_of} is not a day up to today", "prices are not from the future")
