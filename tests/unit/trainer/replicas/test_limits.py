"""The limit of a sum follows the slow steps, and never the slowest one alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.replicas.limits import (
    CEILING_S,
    FLOOR_S,
    STEPS_KEPT,
    STEPS_NEEDED,
    WIDER,
    Phase,
    find_p99_s,
    find_sum_limit_s,
    keep,
)

TIMES = st.lists(st.floats(0.001, 3600.0), max_size=300)
PHASES: tuple[Phase, ...] = ("trains", "compiles", "saves", "heals")


def test_the_limit_is_five_times_the_slow_step() -> None:
    steps_s = [10.0] * 97 + [12.0, 14.0, 500.0]
    assert find_p99_s(steps_s) == 14.0
    assert find_sum_limit_s(steps_s, "trains", 60.0) == 70.0
    assert find_sum_limit_s(steps_s, "heals", 60.0) == 210.0


def test_too_few_steps_give_the_first_limit() -> None:
    assert find_sum_limit_s([1000.0] * (STEPS_NEEDED - 1), "trains", 60.0) == 60.0
    assert find_sum_limit_s([], "compiles", 60.0) == 180.0
    assert find_sum_limit_s([1000.0] * STEPS_NEEDED, "trains", 60.0) == CEILING_S


@given(TIMES, st.floats(1.0, 600.0), st.floats(1.0, 100.0))
def test_the_limit_is_bounded_grows_with_the_steps_and_is_wider_beside_training(
    steps_s: list[float], first_s: float, factor: float
) -> None:
    limits_s = {phase: find_sum_limit_s(steps_s, phase, first_s) for phase in PHASES}
    assert all(min(first_s, FLOOR_S) <= limit_s <= CEILING_S for limit_s in limits_s.values())
    assert find_sum_limit_s([one * factor for one in steps_s], "trains", first_s) >= limits_s["trains"]
    for phase in PHASES[1:]:
        assert limits_s[phase] == pytest.approx(min(CEILING_S, WIDER * limits_s["trains"]))


@given(TIMES)
def test_99_of_100_steps_are_within_the_percentile(steps_s: list[float]) -> None:
    p99_s = find_p99_s(steps_s)
    if p99_s is not None:
        assert sum(one <= p99_s for one in steps_s) >= 0.99 * len(steps_s)
        assert p99_s in steps_s


def test_only_the_latest_steps_are_kept() -> None:
    steps_s: tuple[float, ...] = ()
    for number in range(STEPS_KEPT + 7):
        steps_s = keep(steps_s, float(number))
    assert steps_s == tuple(map(float, range(7, STEPS_KEPT + 7)))
    assert keep(steps_s, math.nan) == keep(steps_s, math.inf) == keep(steps_s, -1.0) == steps_s
