from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.cost.run_cost import InterruptionRates, UninterruptedRun, expect_interruptions, shipped_rates
from prime_train.estimate.values import Interval

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


# Figures 3 to 5 of Daly (2006): 500 h of work, a restart of 10 min, a save of 5 min; the best interval in minutes.
@pytest.mark.parametrize(("mean_between_h", "best_min"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_the_quickest_interval_is_the_published_one(mean_between_h: float, best_min: float) -> None:
    def run_s(between_s: int) -> float:
        return expect_interruptions(UninterruptedRun(500 * HOUR_S, between_s, 300), 1 / mean_between_h, 600).run_s

    assert min(range(60, 36_000, 6), key=run_s) / 60 == pytest.approx(best_min, abs=0.6)


def test_the_first_order_by_hand() -> None:
    """Ten interruptions, each half an interval of 100 s and a restart of 50 s: 1,000 s lost of 1,000,000."""
    told = expect_interruptions(UninterruptedRun(1e6, 100), HOUR_S / 1e5, 50)
    assert told.interruptions == pytest.approx(10, rel=2e-3)
    assert told.lost_s == pytest.approx(10 * (100 / 2 + 50), rel=2e-3)


def test_nothing_is_lost_where_nothing_interrupts() -> None:
    assert expect_interruptions(UninterruptedRun(1000, 100, 2), 0, 600) == (1000 + 20, 0, 0)


def test_a_run_without_checkpoints_loses_it_all() -> None:
    rate = 1 / 10
    whole = expect_interruptions(UninterruptedRun(10 * HOUR_S, None), rate, 0)
    assert whole.run_s == pytest.approx(10 * HOUR_S * math.expm1(1))


def test_a_stretch_that_is_never_finished_takes_for_ever() -> None:
    assert expect_interruptions(UninterruptedRun(1000 * DAY_S, None), 10.0, 600) == (math.inf, math.inf, math.inf)


numbers = st.floats(1, 1e6)


@given(numbers, numbers, st.floats(0, 100), st.floats(0, 0.5), st.floats(0, 3600))
def test_more_interruptions_never_make_a_run_shorter(
    solve_s: float, between_s: float, save_s: float, per_hour: float, restart_s: float
) -> None:
    run = UninterruptedRun(solve_s, between_s, save_s)
    calm, rough = expect_interruptions(run, per_hour, restart_s), expect_interruptions(run, per_hour * 2, restart_s)
    assert rough.run_s >= calm.run_s * (1 - 1e-9)
    assert calm.run_s >= solve_s
    assert calm.lost_s >= 0


@given(numbers, st.floats(1, 1e4), st.floats(0.001, 0.5), st.floats(0, 3600))
def test_a_longer_interval_never_loses_less(
    solve_s: float, between_s: float, per_hour: float, restart_s: float
) -> None:
    near = expect_interruptions(UninterruptedRun(solve_s, between_s), per_hour, restart_s)
    far = expect_interruptions(UninterruptedRun(solve_s, between_s * 2), per_hour, restart_s)
    assert far.lost_s >= near.lost_s * (1 - 1e-6) - 1e-6


def test_the_rates_have_an_order_and_sources() -> None:
    known = shipped_rates()
    for interval in (known.spot, known.on_demand, known.restart_s):
        assert 0 < interval.low <= interval.typical <= interval.high
    assert known.spot.typical == pytest.approx(math.sqrt(known.spot.low * known.spot.high), rel=0.02)
    assert len(known.sources) == 3
    assert all(
        "http" in source or "arXiv" in source or "docs." in source or ".com" in source for source in known.sources
    )


def test_the_rate_of_llama_3_is_the_one_in_the_paper() -> None:
    assert shipped_rates().on_demand.typical == pytest.approx(419 / (54 * 24 * 16_384), rel=0.02)


def test_on_demand_counts_gpus_and_spot_does_not() -> None:
    known = InterruptionRates(Interval(0.1, 0.2, 0.3), Interval(1e-5, 2e-5, 3e-5), Interval(1, 2, 3))
    assert known.per_hour(100, spot=False) == pytest.approx((1e-3, 2e-3, 3e-3))
    assert known.per_hour(100, spot=True) == known.spot


def test_what_hardly_one_try_in_a_thousand_survives_is_reported_as_never() -> None:
    rate = 1.0
    assert expect_interruptions(UninterruptedRun(6.8 * HOUR_S, None), rate, 0).run_s < 1000 * HOUR_S
    assert expect_interruptions(UninterruptedRun(7.0 * HOUR_S, None), rate, 0).run_s == math.inf
    assert (
        expect_interruptions(UninterruptedRun(7.0 * HOUR_S, HOUR_S), rate, 0).run_s < 13 * HOUR_S
    )  # an interval of an hour saves it
