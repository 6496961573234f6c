from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.spot.advice import (
    Saves,
    compute_excess,
    daly_interval_s,
    expect,
    recommend,
    young_interval_s,
)

HOUR_S = 3600.0


# Daly (2006), figures 3 to 5: a save of 5 min; the mean time between interruptions, and "the new model predicts".
@pytest.mark.parametrize(("between_h", "best_min"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_the_interval_is_the_published_one(between_h: float, best_min: float) -> None:
    assert daly_interval_s(300, between_h * HOUR_S) / 60 == pytest.approx(best_min, abs=0.6)


def test_young_by_hand() -> None:
    assert young_interval_s(2, 3600) == 120


def test_a_save_longer_than_two_lives_is_made_once_in_a_life() -> None:
    assert daly_interval_s(1000, 400) == 400


@given(st.floats(0.01, 600), st.floats(600, 1e6))
def test_no_other_interval_is_better_by_a_thousandth(stall_s: float, between_s: float) -> None:
    best_s = daly_interval_s(stall_s, between_s)
    per_hour = HOUR_S / between_s
    best = expect(1e7, best_s, Saves(stall_s, stall_s), per_hour, 0).run_s
    others = (expect(1e7, best_s * factor, Saves(stall_s, stall_s), per_hour, 0).run_s for factor in (0.5, 0.9, 1.1, 2))
    assert all(other >= best * 0.999 for other in others)


def test_a_write_that_takes_longer_than_the_best_interval_decides() -> None:
    advice = recommend(Saves(0.01, 600), per_hour=0.1, step_s=7, max_steps=10_000)
    assert (advice.reason, advice.interval_steps) == ("write", math.ceil(600 / 7))


def test_a_run_shorter_than_the_interval_saves_at_its_end() -> None:
    advice = recommend(Saves(30, 60), per_hour=0.001, step_s=1, max_steps=50)
    assert (advice.reason, advice.interval_steps) == ("run", 50)


def test_the_steps_are_those_of_the_interval() -> None:
    advice = recommend(Saves(30, 60), per_hour=0.2, step_s=10, max_steps=10**6)
    assert advice.reason == "daly"
    assert advice.interval_s == advice.interval_steps * 10
    assert advice.interval_s == pytest.approx(daly_interval_s(30, 5 * HOUR_S), abs=5)


@pytest.mark.parametrize("wrong", [(0.0, 1.0, 1), (1.0, 0.0, 1), (1.0, 1.0, 0)])
def test_nothing_to_compute_from(wrong: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="needs"):
        recommend(Saves(1, 1), *wrong)


def test_the_excess_of_an_interval() -> None:
    saves = Saves(30, 30)
    best_s = daly_interval_s(30, 5 * HOUR_S)
    assert compute_excess(best_s, best_s, saves, 0.2, 600) == 0
    assert 0 < compute_excess(best_s * 2, best_s, saves, 0.2, 600) < compute_excess(best_s * 8, best_s, saves, 0.2, 600)
    assert compute_excess(200 * HOUR_S, best_s, saves, 0.2, 600) == math.inf
