"""The limit of a step follows the slow steps, and not the slowest one alone."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.replicas.limits import (
    CEILING_S,
    DEFAULT_LIMIT_S,
    FIRST_STEPS,
    FLOOR_S,
    STEPS_KEPT,
    STEPS_NEEDED,
    WIDE,
    StepPace,
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


# --- the pace of a replica, from which the limit of a sum follows -----------------------------------

SECONDS = st.one_of(st.floats(0.001, 3600.0), st.just("widen"))


def follow(pace: StepPace, seen: Sequence[float | str]) -> StepPace:
    for one in seen:
        pace = pace.add(one) if isinstance(one, float) else pace.widen()
    return pace


def steady(step_s: float) -> StepPace:
    """After its first steps, and as many as are needed."""
    return follow(StepPace(), [900.0] * FIRST_STEPS + [step_s] * STEPS_NEEDED)


def test_the_limit_of_a_sum_follows_the_steps_after_the_first_ones() -> None:
    assert StepPace().limit_s == WIDE * DEFAULT_LIMIT_S
    assert steady(0.1).limit_s == FLOOR_S
    assert steady(20.0).limit_s == 60.0
    assert follow(steady(20.0), [40.0] * STEPS_KEPT).limit_s == 120.0


def test_the_limit_is_wide_after_a_save_for_some_steps_and_then_no_more() -> None:
    before = steady(20.0)
    wide = before.widen()
    limits_s = [follow(wide, [20.0] * steps).limit_s for steps in range(4)]
    assert (before.limit_s, limits_s) == (60.0, [180.0, 180.0, 60.0, 60.0])
    assert wide.widen() == wide


def test_a_state_that_comes_has_more_time_than_a_step() -> None:
    assert steady(0.1).healing_s == WIDE * DEFAULT_LIMIT_S
    assert steady(100.0).healing_s == 900.0


@given(st.lists(SECONDS, max_size=60), st.floats(1.0, 100.0))
def test_the_limit_of_a_sum_is_bounded_and_grows_with_the_steps(seen: list[float | str], factor: float) -> None:
    pace = follow(StepPace(), seen)
    slower = follow(StepPace(), [one * factor if isinstance(one, float) else one for one in seen])
    assert FLOOR_S <= pace.limit_s <= pace.widen().limit_s <= CEILING_S
    assert pace.limit_s <= pace.healing_s <= CEILING_S
    assert slower.limit_s >= pace.limit_s
    assert len(pace.steps_s) <= STEPS_KEPT


@given(st.lists(SECONDS, max_size=60), st.floats(0.5, 1e4))
def test_a_limit_that_a_config_sets_does_not_change(seen: list[float | str], fixed_s: float) -> None:
    pace = follow(StepPace(fixed_s), seen)
    assert pace.limit_s == pace.healing_s == fixed_s
