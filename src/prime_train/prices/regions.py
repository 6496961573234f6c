"""Gathers what a document gave into rows; offers that differ only in where they are become one. Pure.

A catalogue repeats each price for every data centre: RunPod's has 2 MB and some hundred different prices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from prime_train.prices.price import Fault, Price, Rows

_NAMED = 2  # regions that are named before the rest is counted
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST = 60


def gathered(found: Iterable[Price | Fault | str]) -> Rows:
    """Rows of what was read offer by offer: a price, a fault, or why the offer was left out."""
    prices: list[Price] = []
    faults: list[Fault] = []
    left_out: Counter[str] = Counter()
    for item in found:
        match item:
            case Price():
                prices.append(item)
            case Fault():
                faults.append(item)
            case str():
                left_out[item] += 1
    return Rows(merged(prices), tuple(faults), tuple(left_out.most_common()))


def merged(prices: Iterable[Price]) -> tuple[Price, ...]:
    """One row for offers of the same provider, GPU, count and price; `region` then names some and counts the rest."""
    places: dict[Price, dict[str, None]] = {}
    for price in prices:
        places.setdefault(price._replace(region=""), {})[clean(price.region)] = None
    return tuple(price._replace(region=_joined([name for name in names if name])) for price, names in places.items())


def clean(text: str, longest: int = _LONGEST) -> str:
    """A name from outside, fit to be printed and kept: no control characters, not endless."""
    return _CONTROL.sub(" ", text).strip(" ,")[:longest]


def _joined(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" +{more}" if more > 0 else "")
