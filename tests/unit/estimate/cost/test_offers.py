from __future__ import annotations

from datetime import date

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.cost.offers import Judge, Judgement, OfferLimits, Ranking, can_join, rank
from prime_train.estimate.cost.run_cost import InterruptionRates
from prime_train.estimate.relayout import Impossible, TrainedWork
from prime_train.estimate.values import Interval
from prime_train.estimate.verdict import CERTAIN, IMPOSSIBLE, Chance, MemoryVerdict
from prime_train.prices.price import Price
from prime_train.prices.store import shipped_prices
from prime_train.registry import gpus as gpu_registry
from prime_train.views.prices import find_json, ranked_rows

CALM = InterruptionRates(Interval(0, 0, 0), Interval(0, 0, 0), Interval(0, 0, 0))
LIMITS = OfferLimits(100)
WORK = TrainedWork(1000, None)
TODAY = date(2026, 11, 2)


def offer(provider: str, gpu: str, gpus: int, usd: float, *, spot: bool = False) -> Price:
    return Price(provider, gpu, gpus, usd, spot, "", "test", "2026-11-01")


def judge(gpu: str, gpus: int) -> Judgement | Impossible:
    """160 GiB of states over the GPUs and 10 more on each; an hour on one GPU, and the more GPUs the less."""
    usable = {"h100-80gb": 79.2, "h200": 139.8, "l40s": 44.4}[gpu]
    speed = {"h100-80gb": 1.0, "h200": 1.25, "l40s": 0.25}[gpu]
    if gpus > 16:
        return Impossible(f"its batch does not divide by {gpus}")
    needed, step_s = 160 / gpus + 10, 3.6 / gpus / speed
    return Judgement(
        CERTAIN if needed <= usable else IMPOSSIBLE, needed, usable, WORK, Interval(step_s * 0.9, step_s, step_s * 1.2)
    )


def ranked(*prices: Price, limits: OfferLimits = LIMITS, by: Judge = judge) -> Ranking:
    return rank(prices, by, limits, CALM)


def test_the_cheapest_run_comes_first_and_not_the_cheapest_hour() -> None:
    found = ranked(offer("a", "l40s", 8, 0.9), offer("b", "h100-80gb", 8, 2.0), offer("c", "h200", 2, 2.4)).offers
    assert [option.price.provider for option in found] == ["c", "b", "a"]
    assert [round(option.cost.usd.typical, 3) for option in found] == [1.92, 2.0, 3.6]


def test_every_total_is_three_figures() -> None:
    (option,) = ranked(offer("b", "h100-80gb", 8, 2.0)).offers
    assert option.cost.usd == option.cost.gpu_hours.times(2.0)
    assert option.cost.usd.low < option.cost.usd.typical < option.cost.usd.high


def test_whole_machines_are_joined_where_the_cloud_does_so() -> None:
    def needs_sixteen(gpu: str, gpus: int) -> Judgement | Impossible:
        judgement = judge(gpu, gpus)
        return (
            judgement
            if isinstance(judgement, Impossible)
            else judgement._replace(chance=CERTAIN if gpus >= 16 else IMPOSSIBLE)
        )

    assert (can_join("lambda"), can_join("vast"), can_join("nobody")) == (True, False, False)
    prices = (
        offer("lambda", "h100-80gb", 8, 3.0),
        offer("vast", "h100-80gb", 8, 1.0),
        offer("lambda", "h100-80gb", 4, 1.0),
    )
    found = ranked(*prices, by=needs_sixteen)
    assert [(option.price.provider, option.machines, option.gpus) for option in found.offers] == [("lambda", 2, 16)]
    assert found.offers[0].usd_per_hour == 48.0
    assert dict(found.left_out) == {"the run does not fit into the memory": 2}


def test_what_does_not_fit_is_counted_and_the_closest_is_reported() -> None:
    found = ranked(offer("a", "l40s", 4, 0.9), offer("b", "h100-80gb", 2, 2.0))
    assert found.offers == ()
    assert found.left_out == (("the run does not fit into the memory", 2),)
    assert found.closest is not None
    assert (found.closest.price.gpu, found.closest.judgement.needed_gib) == ("l40s", 50.0)


def test_limits() -> None:
    prices = (offer("a", "h100-80gb", 8, 2.0), offer("a", "h100-80gb", 8, 1.0, spot=True), offer("b", "h200", 2, 2.5))
    assert [option.price.spot for option in ranked(*prices).offers] == [False, False]
    with_spot = ranked(*prices, limits=LIMITS._replace(spot=True)).offers
    assert with_spot[0].price == prices[1]
    cheap = ranked(*prices, limits=LIMITS._replace(max_usd_per_hour=5.0))
    assert [option.price.provider for option in cheap.offers] == ["b"]
    assert ("above 5 USD an hour", 1) in cheap.left_out
    few = ranked(*prices, limits=LIMITS._replace(gpus_max=4))
    assert [option.price.provider for option in few.offers] == ["b"]
    assert ("more GPUs in one machine than 4", 1) in few.left_out


def test_every_cloud_of_the_shipped_prices_is_known() -> None:
    text = gpu_registry.data_file("clouds.toml").read_text(encoding="utf-8")
    assert {price.cloud for price in shipped_prices()} <= {cloud["id"] for cloud in tomli.loads(text)["cloud"]}


def test_what_cannot_be_judged_has_the_reason() -> None:
    found = ranked(offer("a", "h100-80gb", 32, 2.0))
    assert (found.offers, found.left_out) == ((), (("its batch does not divide by 32", 1),))
    assert found.closest is None


def test_a_start_is_paid_for() -> None:
    starting = CALM._replace(restart_s=Interval(60, 600, 1800))
    (option,) = rank([offer("b", "h100-80gb", 8, 2.0)], judge, LIMITS, starting).offers
    (without,) = ranked(offer("b", "h100-80gb", 8, 2.0)).offers
    assert option.cost.usd.typical - without.cost.usd.typical == pytest.approx(600 / 3600 * 8 * 2.0)


prices = st.lists(
    st.builds(
        offer,
        st.sampled_from(["lambda", "vast", "nebius"]),
        st.sampled_from(["h100-80gb", "h200", "l40s"]),
        st.sampled_from([1, 2, 4, 8]),
        st.floats(0.1, 9),
        spot=st.booleans(),
    ),
    max_size=12,
)


@given(prices, st.floats(0.5, 60))
def test_a_ranking_is_in_order_and_counts_everyone(offers: list[Price], dearest: float) -> None:
    limits = LIMITS._replace(spot=True, max_usd_per_hour=dearest, gpus_max=16)
    found = ranked(*offers, limits=limits)
    totals = [option.cost.usd.typical for option in found.offers]
    assert totals == sorted(totals)
    assert len(totals) + sum(count for _, count in found.left_out) == len(offers)
    assert all(option.usd_per_hour <= dearest and option.gpus <= 16 and option.fits for option in found.offers)


def test_an_offer_on_which_the_run_likely_fits_ranks_behind_every_one_on_which_it_fits() -> None:
    def by(gpu: str, _: int) -> Judgement:
        likely = Chance(MemoryVerdict.LIKELY, 0.8)
        return Judgement(likely if gpu == "l40s" else CERTAIN, 40.0, 44.0, WORK, Interval(0.9, 1.0, 1.2))

    found = ranked(offer("a", "l40s", 1, 0.1), offer("b", "h100-80gb", 1, 9.0), by=by)
    assert [option.price.gpu for option in found.offers] == ["h100-80gb", "l40s"]
    assert found.left_out == ()
    assert [row[9] for row in ranked_rows(find_json("run.toml", WORK, found, TODAY), most=2)] == [
        "40 of 44 GiB",
        "40 of 44 GiB, likely fits (probability 80 %)",
    ]
