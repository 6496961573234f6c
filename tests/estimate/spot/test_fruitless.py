from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.spot.fruitless import MOST_FRUITLESS, count_fruitless, is_spent
from prime_train.spec import Restart


@pytest.mark.parametrize(
    ("saved", "fruitless"),
    [([], 0), ([0], 0), ([0, 0], 1), ([0, 5, 5, 5], 2), ([0, 5, 3, 5], 2), ([0, 5, 3, 6], 0), ([7, 0, 0, 0], 3)],
)
def test_only_a_newer_checkpoint_is_progress(saved: list[int], fruitless: int) -> None:
    assert count_fruitless(saved) == fruitless


def test_the_limit_is_that_of_the_supervisor() -> None:
    assert Restart().max_fruitless_attempts == MOST_FRUITLESS


@given(st.lists(st.integers(0, 3), min_size=40))
def test_a_run_that_saves_nothing_more_is_always_ended(saved: list[int]) -> None:
    """Four values can rise four times, so three attempts without progress come within 4 x 3 + 1."""
    assert any(is_spent(saved[: end + 1]) for end in range(13))
