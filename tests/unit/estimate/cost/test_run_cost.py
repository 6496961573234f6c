from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.cost.run_cost import (
    InterruptionRates,
    PricedWork,
    cost_at,
    cost_of,
    price_interval,
    shipped_rates,
)
from prime_train.estimate.values import Interval
from prime_train.prices.price import Price

CALM = InterruptionRates(Interval(0, 0, 0), Interval(0, 0, 0), Interval(0, 0, 0))
WORK = PricedWork("h100-80gb", 8, 3600, Interval(1.0, 2.0, 4.0), 100)


def offer(usd: float, gpus: int = 8, *, spot: bool = False, gpu: str = "h100-80gb", as_of: str = "2026-11-01") -> Price:
    return Price("cloud", gpu, gpus, usd, spot, "", f"source {usd}", as_of)


def test_by_hand() -> None:
    """An hour, two, four on eight GPUs, at 1, 2 and 3 USD."""
    cost = cost_of(WORK, [offer(2.0), offer(1.0), offer(3.0)], CALM, spot=False)
    assert cost is not None
    assert cost.gpu_hours == Interval(8, 16, 32)
    assert cost.run_hours == Interval(1, 2, 4)
    assert cost.usd_per_gpu_hour == Interval(1, 2, 3)
    assert cost.usd == Interval(8, 32, 96)
    assert (cost.interruptions, cost.lost_gpu_hours) == (Interval(0, 0, 0), Interval(0, 0, 0))
    assert (cost.offers, cost.spot) == (3, False)


def test_only_the_gpu_and_the_kind_that_are_asked_for_count() -> None:
    prices = [offer(2.0), offer(0.5, spot=True), offer(0.1, gpu="l40s")]
    on_demand, spot = (cost_of(WORK, prices, CALM, spot=kind) for kind in (False, True))
    assert on_demand is not None
    assert spot is not None
    assert (on_demand.usd_per_gpu_hour.typical, spot.usd_per_gpu_hour.typical) == (2.0, 0.5)
    assert cost_of(WORK._replace(gpu="b200"), prices, CALM, spot=False) is None


def test_offers_of_the_size_that_is_wanted_count_where_there_are_enough() -> None:
    single = [offer(usd, 1) for usd in (5.0, 6.0, 7.0)]
    few = cost_of(WORK, [*single, offer(2.0), offer(3.0)], CALM, spot=False)
    enough = cost_of(WORK, [*single, offer(2.0), offer(3.0), offer(4.0)], CALM, spot=False)
    assert few is not None
    assert enough is not None
    assert few.usd_per_gpu_hour == Interval(2, 5, 7)
    assert enough.usd_per_gpu_hour == Interval(2, 3, 4)


def test_the_oldest_date_is_reported_and_what_has_none_is_counted() -> None:
    prices = [offer(2.0, as_of="2026-11-20"), offer(2.1, as_of="2026-04"), offer(2.2, as_of="")]
    cost = cost_of(WORK, prices, CALM, spot=False)
    assert cost is not None
    assert (cost.prices_as_of, cost.undated) == ("2026-04", 1)
    assert cost.sources == ("source 2.0", "source 2.1", "source 2.2")
    undated = cost_of(WORK, [offer(2.0, as_of="")], CALM, spot=False)
    assert undated is not None
    assert undated.prices_as_of is None


def test_interruptions_cost() -> None:
    calm = cost_at(WORK, [offer(2.0)], CALM)
    rough = cost_at(WORK, [offer(2.0)], shipped_rates())
    assert all(more > less for more, less in zip(rough.usd, calm.usd, strict=True))
    assert rough.lost_gpu_hours.high > rough.lost_gpu_hours.typical > rough.lost_gpu_hours.low > 0
    assert rough.gpu_hours.typical == pytest.approx(calm.gpu_hours.typical + rough.lost_gpu_hours.typical)


def test_spot_is_interrupted_more_often() -> None:
    on_demand = cost_at(WORK, [offer(2.0)], shipped_rates())
    spot = cost_at(WORK, [offer(2.0, spot=True)], shipped_rates())
    assert spot.interruptions.typical > on_demand.interruptions.typical
    assert spot.usd.typical > on_demand.usd.typical  # at the same price


@pytest.mark.parametrize(
    ("usd", "interval"),
    [
        ([3.0], (3, 3, 3)),
        ([3.0, 1.0], (1, 2, 3)),
        ([float(usd) for usd in range(1, 10)], (1, 5, 9)),
        ([float(usd) for usd in range(1, 12)], (2, 6, 10)),  # the tenths, from ten offers on
    ],
)
def test_an_interval_of_prices(usd: list[float], interval: tuple[float, ...]) -> None:
    assert price_interval(usd) == pytest.approx(interval)


def test_no_price_has_no_interval() -> None:
    with pytest.raises(ValueError, match="no price"):
        price_interval([])


positive = st.floats(0.01, 100)


@given(st.lists(positive, min_size=1, max_size=40))
def test_an_interval_is_in_order_and_within_the_prices(usd: list[float]) -> None:
    low, typical, high = price_interval(usd)
    assert low <= typical <= high
    assert min(usd) * (1 - 1e-9) <= low
    assert high <= max(usd) * (1 + 1e-9)


@given(
    st.lists(positive, min_size=1, max_size=12),
    st.tuples(positive, positive, positive),
    st.integers(1, 10**5),
    st.booleans(),
)
def test_a_cost_is_in_order_and_grows_with_the_steps(
    usd: list[float], step_s: tuple[float, ...], steps: int, spot: bool
) -> None:
    work = PricedWork("h100-80gb", 8, steps, Interval(*sorted(step_s)), 100)
    offers = [offer(price, spot=spot) for price in usd]
    cost, longer = (cost_at(work._replace(steps=count), offers, shipped_rates()) for count in (steps, steps * 2))
    assert cost.usd.low <= cost.usd.typical <= cost.usd.high
    assert longer.usd.typical > cost.usd.typical
