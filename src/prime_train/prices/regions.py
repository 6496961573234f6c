"""Collects the offers of a document into rows and merges those that differ only by region. Pure.

Catalogues repeat each price for every data centre: RunPod's has 2 MB and a few hundred different prices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from prime_train.prices.price import Fault, Price, Rows

_NAMED = 2  # regions that are named; the others are counted
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST = 60


def gather_rows(found: Iterable[Price | Fault | str]) -> Rows:
    """The rows of a document, given per offer a price, a fault, or why the offer is left out."""
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
    return Rows(merge_regions(prices), tuple(faults), tuple(left_out.most_common()))


def merge_regions(prices: Iterable[Price]) -> tuple[Price, ...]:
    """One row for offers of the same provider, GPU, count and price; `region` names some and counts the others."""
    places: dict[Price, dict[str, None]] = {}
    for price in prices:
        places.setdefault(price._replace(region=""), {})[clean_text(price.region)] = None
    return tuple(price._replace(region=_join([name for name in names if name])) for price, names in places.items())


def clean_text(text: str, longest: int = _LONGEST) -> str:
    """External text without control characters, cut to `longest` characters."""
    return _CONTROL.sub(" ", text).strip(" ,")[:longest]


def _join(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" +{more}" if more > 0 else "")
