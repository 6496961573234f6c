"""The verdict follows the three values of an interval, and its probability the distribution they describe."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.values import Interval, RoleMemory
from prime_train.estimate.verdict import (
    CERTAIN,
    COVERED,
    IMPOSSIBLE,
    SAFE_SHARE,
    Chance,
    MemoryVerdict,
    judge,
    judge_role,
    worst_of,
)

NEED = Interval(70.0, 76.0, 90.0)


@pytest.mark.parametrize(
    ("room", "verdict"),
    [
        (100.0, MemoryVerdict.FITS),
        (90.0, MemoryVerdict.FITS),
        (89.9, MemoryVerdict.LIKELY),
        (76.0, MemoryVerdict.LIKELY),
        (75.9, MemoryVerdict.DOES_NOT_FIT),
        (0.0, MemoryVerdict.DOES_NOT_FIT),
    ],
)
def test_the_typical_value_and_the_bound_decide(room: float, verdict: MemoryVerdict) -> None:
    assert judge(NEED, room).verdict is verdict


def test_a_bound_within_the_last_twentieth_of_a_gpu_is_no_certain_fit() -> None:
    need = Interval(70.0, 76.0, 96.0)
    assert judge(need, 100.0, SAFE_SHARE).verdict is MemoryVerdict.LIKELY
    assert judge(need, 100.0, SAFE_SHARE).probability <= COVERED
    assert judge(need._replace(high=95.0), 100.0, SAFE_SHARE).verdict is MemoryVerdict.FITS


@pytest.mark.parametrize(("room", "probability"), [(1000.0, 0.95), (1.0, 0.05)])
def test_nothing_is_certain_where_nothing_similar_was_measured(room: float, probability: float) -> None:
    memory = RoleMemory("trainer", 1, (), NEED, (), unlike=("no measured run of it",))
    assert judge_role(memory, room).probability == probability
    assert judge_role(memory._replace(unlike=()), room).probability in (0.0, 1.0)


def test_the_ends_of_the_interval_have_the_probability_that_they_state() -> None:
    assert [judge(NEED, room).probability for room in NEED] == pytest.approx([1 - COVERED, 0.5, COVERED])


def test_a_need_that_is_known_exactly_has_no_doubt() -> None:
    exact = Interval(5.0, 5.0, 5.0)
    assert judge(exact, 5.0) == CERTAIN
    assert judge(exact, 4.999) == IMPOSSIBLE


def test_only_a_likely_fit_shows_its_probability() -> None:
    assert Chance(MemoryVerdict.LIKELY, 0.814).text == "likely fits (probability 81 %)"
    assert CERTAIN.text == "fits"
    assert IMPOSSIBLE.text == "does not fit"


@given(
    st.floats(0.1, 100),
    st.floats(0, 1),
    st.floats(0, 3),
    st.lists(st.floats(0, 1000, allow_nan=False), min_size=2, max_size=5),
)
def test_more_room_never_lowers_the_probability(typical: float, below: float, above: float, rooms: list[float]) -> None:
    need = Interval(typical * (1 - below), typical, typical * (1 + above))
    chances = [judge(need, room) for room in sorted(rooms)]
    assert all(first.probability <= after.probability for first, after in pairwise(chances))
    order = list(MemoryVerdict)
    places = [order.index(chance.verdict) for chance in chances]
    assert places == sorted(places, reverse=True)
    assert all(0 <= chance.probability <= 1 for chance in chances)


def test_several_needs_have_the_worst_verdict_and_less_probability_than_each() -> None:
    likely, fits = Chance(MemoryVerdict.LIKELY, 0.8), Chance(MemoryVerdict.FITS, 0.97)
    both = worst_of([likely, fits])
    assert both.verdict is MemoryVerdict.LIKELY
    assert both.probability == pytest.approx(0.776)
    assert worst_of([likely, IMPOSSIBLE]) == IMPOSSIBLE
    assert worst_of([]) == CERTAIN
