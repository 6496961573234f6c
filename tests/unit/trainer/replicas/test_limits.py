"""The limit of a step follows the slow steps, and not the slowest one alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.replicas.limits import (
    CEILING_S,
    FLOOR_S,
    STEPS_KEPT,
    STEPS_NEEDED,
    find_slow_s,
    keep,
    learn_limit_s,
)

TIMES = st.lists(st.floats(0.001, 3600.0), max_size=300)


def test_the_limit_is_three_times_the_slow_step() -> None:
    steps_s = [10.0] * 97 + [12.0, 14.0, 500.0]
    assert find_slow_s(steps_s) == 14.0
    assert learn_limit_s(steps_s, 60.0) == 42.0


def test_too_few_steps_give_the_first_limit() -> None:
    assert learn_limit_s([1000.0] * (STEPS_NEEDED - 1), 60.0) == 60.0
    assert learn_limit_s([1000.0] * STEPS_NEEDED, 60.0) == CEILING_S
    assert learn_limit_s([0.1] * STEPS_NEEDED, 60.0) == FLOOR_S


@given(TIMES, st.floats(1.0, 100.0))
def test_the_limit_is_bounded_and_grows_with_the_steps(steps_s: list[float], factor: float) -> None:
    limit_s = learn_limit_s(steps_s, 60.0)
    assert FLOOR_S <= limit_s <= CEILING_S
    assert learn_limit_s([one * factor for one in steps_s], 60.0) >= limit_s


@given(TIMES)
def test_99_of_100_steps_are_within_the_slow_one(steps_s: list[float]) -> None:
    slow_s = find_slow_s(steps_s)
    if slow_s is not None:
        assert sum(one <= slow_s for one in steps_s) >= 0.99 * len(steps_s)
        assert slow_s in steps_s


def test_only_the_latest_steps_are_kept() -> None:
    steps_s: tuple[float, ...] = ()
    for number in range(STEPS_KEPT + 7):
        steps_s = keep(steps_s, float(number))
    assert steps_s == tuple(map(float, range(7, STEPS_KEPT + 7)))
