from __future__ import annotations

import math
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.prices import price
from prime_train.prices.price import Price, PriceFault

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize("value", ["", None, "free", float("nan"), "nan", "inf", -1, "-2.5", 0, "0.00", True, [], {}])
def test_what_is_no_price(value: object) -> None:
    with pytest.raises(PriceFault) as refusal:
        price.number(value, "vms.csv line 7, column Price")
    assert refusal.value.where == "vms.csv line 7, column Price"
    assert refusal.value.what
    assert refusal.value.why


@given(st.floats() | st.integers() | st.text() | st.none() | st.booleans(), st.integers(1, 64))
def test_what_passes_is_a_sane_price(value: object, gpus: int) -> None:
    found = price.catch(price.per_gpu_hour, value, gpus, "x")
    if not isinstance(found, PriceFault):
        assert math.isfinite(found)
        assert price.LOWEST_USD_PER_GPU_HOUR <= found <= price.HIGHEST_USD_PER_GPU_HOUR


def test_an_absurd_price_is_reported_per_gpu() -> None:
    with pytest.raises(PriceFault, match="250 USD for one GPU hour"):
        price.per_gpu_hour(2_000, 8, "x")
    assert price.per_gpu_hour(23.6, 8, "x") == pytest.approx(2.95)


@pytest.mark.parametrize("value", [2.5, 0, -8, 5000, "many", None, float("nan")])
def test_what_is_no_number_of_gpus(value: object) -> None:
    with pytest.raises(PriceFault):
        price.count(value, "x")


def test_a_catalogue_writes_counts_as_floats() -> None:
    assert price.count("8.0", "x") == 8


@pytest.mark.parametrize(
    ("as_of", "age", "stale"),
    [
        ("2026-11-20", 1, False),
        ("2026-10-22", 30, False),
        ("2026-10-21", 31, True),
        ("2026-11", 20, False),
        ("", None, True),
    ],
)
def test_age(as_of: str, age: int | None, stale: bool) -> None:
    assert price.age_days(as_of, TODAY) == age
    assert price.is_stale(as_of, TODAY) is stale


@pytest.mark.parametrize("as_of", ["yesterday", "2026-13-01", "2026-02-30", "20261121"])
def test_what_is_no_date(as_of: str) -> None:
    with pytest.raises(ValueError, match=r"YYYY|month|day"):
        price.day(as_of)


def test_an_offer_is_all_its_gpus() -> None:
    offer = Price("primeintellect/nebius", "h100-80gb", 8, 2.118, False, "", "x", "")
    assert offer.usd_per_hour == pytest.approx(16.944)
    assert offer.cloud == "primeintellect"
