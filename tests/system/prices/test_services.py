"""What Prime Intellect and Vast answer, read without asking them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.prices.catalogues import prime_intellect_offers, prime_intellect_rows, vast_offers, vast_rows
from prime_train.prices.price import Price, PriceRows
from tests.fakes.price_server import prime_offer, vast_offer


def prime(*offers: Any) -> PriceRows:
    found = prime_intellect_offers({"items": list(offers), "totalCount": len(offers)})
    assert found is not None
    return prime_intellect_rows(found, "answer", "api", "2026-11-21")


def of_vast(*offers: Any) -> PriceRows:
    found = vast_offers({"offers": list(offers)})
    assert found is not None
    return vast_rows(found, "answer", "api", "2026-11-21")


def test_a_price_is_of_the_whole_box() -> None:
    assert prime(prime_offer()).prices == (
        Price("primeintellect/nebius", "h100-80gb", 8, 2.118, False, "FI, eu-north1", "api", "2026-11-21"),
    )
    assert of_vast(vast_offer()).prices == (
        Price("vast", "h100-80gb", 8, 2.0, False, "Vietnam, VN", "api", "2026-11-21"),
    )


@pytest.mark.parametrize(
    ("changes", "gpu", "usd", "spot"),
    [
        ({"socket": "PCIe"}, "h100-80gb-pcie", 2.118, False),
        ({"gpuMemory": 80}, "h100-80gb", 2.118, False),
        ({"isSpot": True}, "h100-80gb", 2.118, True),
        ({"prices": {"onDemand": 16.0, "communityPrice": 12.0, "currency": "USD"}}, "h100-80gb", 1.5, False),
        ({"provider": None}, "h100-80gb", 2.118, False),
    ],
)
def test_prime_intellect(changes: dict[str, Any], gpu: str, usd: float, spot: bool) -> None:
    (price,) = prime(prime_offer(**changes)).prices
    assert (price.gpu, price.usd_per_gpu_hour, price.spot) == (gpu, usd, spot)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpuType": "RTX3070_8GB", "gpuMemory": 64}, "RTX3070_8GB is not in registry/gpus.toml"),
        ({"stockStatus": "Unavailable"}, "not in stock"),
        ({"prices": {"onDemand": 10.0, "currency": "EUR"}}, "priced in EUR, not in USD"),
        ({"prices": {"onDemand": None, "communityPrice": None}}, "without a price"),
    ],
)
def test_prime_intellect_offers_that_are_left_out(changes: dict[str, Any], why: str) -> None:
    rows = prime(prime_offer(**changes))
    assert (rows.prices, rows.left_out) == ((), ((why, 1),))


@pytest.mark.parametrize(
    ("offer", "where"),
    [
        (prime_offer(prices={"onDemand": float("nan")}), "answer items[0].prices.onDemand"),
        (prime_offer(prices={"onDemand": -3}), "answer items[0].prices.onDemand"),
        (prime_offer(prices={"communityPrice": 0}), "answer items[0].prices.communityPrice"),
        (prime_offer(gpuCount=0), "answer items[0].gpuCount"),
        (prime_offer(gpuCount=None), "answer items[0].gpuCount"),
        (prime_offer(prices=None), "answer items[0]"),
        ("no offer", "answer items[0]"),
    ],
)
def test_prime_intellect_faults(offer: Any, where: str) -> None:
    rows = prime(offer, prime_offer())
    assert [fault.where for fault in rows.faults] == [where]
    assert len(rows.prices) == 1


def test_prime_intellects_older_answer_is_a_table_per_gpu() -> None:
    found = prime_intellect_offers({"H100_80GB": [prime_offer()], "L40S_48GB": []})
    assert found is not None
    assert [place for place, _ in found] == ["H100_80GB[0]"]


@pytest.mark.parametrize(
    ("changes", "gpu", "spot"),
    [
        ({"gpu_name": "H100_SXM"}, "h100-80gb", False),
        ({"gpu_name": "RTX 4090", "gpu_ram": 24564}, "rtx-4090", False),
        ({"gpu_name": "A100 PCIE", "gpu_ram": 81920}, "a100-80gb-pcie", False),
        ({"is_bid": True}, "h100-80gb", True),
    ],
)
def test_vast(changes: dict[str, Any], gpu: str, spot: bool) -> None:
    (price,) = of_vast(vast_offer(**changes)).prices
    assert (price.gpu, price.usd_per_gpu_hour, price.spot) == (gpu, 2.0, spot)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu_name": "RTX 4090", "gpu_ram": 49140}, "RTX 4090 is not in registry/gpus.toml"),
        ({"rentable": False}, "not for rent"),
    ],
)
def test_vast_offers_that_are_left_out(changes: dict[str, Any], why: str) -> None:
    rows = of_vast(vast_offer(**changes))
    assert (rows.prices, rows.left_out) == ((), ((why, 1),))


@pytest.mark.parametrize(
    ("offer", "where"),
    [
        (vast_offer(dph_total=float("nan")), "answer offers[0].dph_total"),
        (vast_offer(dph_total=9_999), "answer offers[0].dph_total"),
        (vast_offer(num_gpus=True), "answer offers[0].num_gpus"),
        ({"gpu_name": "H100 SXM"}, "answer offers[0]"),
        (None, "answer offers[0]"),
    ],
)
def test_vast_faults(offer: Any, where: str) -> None:
    assert [fault.where for fault in of_vast(offer).faults] == [where]


def test_a_name_from_outside_is_cleaned() -> None:
    (price,) = of_vast(vast_offer(geolocation="Nowhere\x1b[2J\n" + "x" * 500)).prices
    assert "\x1b" not in price.region
    assert "\n" not in price.region
    assert len(price.region) <= 60


@pytest.mark.parametrize("document", [{}, [], {"items": {}}, {"detail": "Not Found"}, 7, None, "offers", [[]]])
def test_what_is_no_answer(document: Any) -> None:
    assert prime_intellect_offers(document) is None
    assert vast_offers(document) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(prime_offer())), values)
def test_nothing_in_an_offer_of_prime_intellect_trips_the_reader(field: str, value: Any) -> None:
    rows = prime(prime_offer(**{field: value}))
    assert len(rows.prices) + len(rows.faults) + sum(count for _, count in rows.left_out) == 1


@given(st.sampled_from(sorted(vast_offer())), values)
def test_nothing_in_an_offer_of_vast_trips_the_reader(field: str, value: Any) -> None:
    rows = of_vast(vast_offer(**{field: value}))
    assert len(rows.prices) + len(rows.faults) + sum(count for _, count in rows.left_out) == 1


@given(values)
def test_no_document_trips_the_recognition(document: Any) -> None:
    for offers, to_rows in ((prime_intellect_offers, prime_intellect_rows), (vast_offers, vast_rows)):
        found = offers(document)
        if found is not None:
            to_rows(found, "answer", "api", "")
