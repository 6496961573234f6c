"""The tables of prices: the lowest is the lowest, old prices stand out, and a terminal of 80 columns holds them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.cli.terminal.render import table
from prime_train.core.units import format_usd
from prime_train.prices import store
from prime_train.prices.price import Price, is_stale
from prime_train.views import prices as view

TODAY = date(2026, 11, 23)


def offer(usd: float, as_of: str = "2026-11-21") -> Price:
    return Price("vast", "h100-80gb", 8, usd, False, "US", "a page", as_of)


def document(*prices: Price) -> dict[str, Any]:
    return view.as_json(prices, TODAY)


def mark(text: str, style: str) -> str:
    return f"<{style}>{text}"


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=40))
def test_low_is_the_lowest_and_high_the_highest(usd: list[float]) -> None:
    ((_, _, count, low, median, high, *_),) = view.gpu_rows(document(*map(offer, usd)))
    assert (count, low, high) == (str(len(usd)), format_usd(min(usd)), format_usd(max(usd)))
    assert float(low[1:]) <= float(median[1:]) <= float(high[1:])


@pytest.mark.parametrize(
    ("as_of", "shown"), [("2026-11-21", "2026-11-21"), ("2025-07", "<yellow>2025-07"), ("", "<yellow>undated")]
)
def test_old_prices_are_coloured(as_of: str, shown: str) -> None:
    assert view.gpu_rows(document(offer(2.0, as_of), offer(3.0)), mark)[0][-1] == shown
    assert shown in view.offer_rows(document(offer(2.0, as_of)), mark)[0]


def test_every_shipped_price_has_a_date_up_to_that_of_its_source() -> None:
    for price in store.shipped_prices():
        assert price.as_of
        assert price.as_of <= "2026-11-21"
        if "primeintellect/vms.csv" in price.source:
            assert is_stale(price.as_of, TODAY)


def test_the_tables_fit_80_columns() -> None:
    shipped = document(*store.shipped_prices())
    shown = table(view.gpu_rows(shipped), view.GPU_HEADER, view.GPU_RIGHT, 80, view.GPU_LEAST)
    assert max(map(len, shown.splitlines())) <= 80
    shown = table(view.offer_rows(shipped), view.OFFER_HEADER, view.OFFER_RIGHT, 80, view.OFFER_LEAST)
    assert max(map(len, shown.splitlines())) <= 80
    assert "USD/GPU/H" in shown
