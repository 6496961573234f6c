from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.supervise.core.attempts import LONG_S, SPARE, Launched, count, earliest_s, is_spent
from prime_train.supervise.core.policy import Policy

POLICY = Policy(max_fruitless_attempts=3, backoff_s=1.0, backoff_max_s=60.0, micro_batches=(4, 2))


def launches_in(duration_s: float, policy: Policy) -> int:
    """How many launches happen where every attempt ends at once and the state never changes."""
    launched, now_s, done = Launched(), 0.0, 0
    while now_s < duration_s:
        now_s = max(now_s, earliest_s(launched, policy))
        launched = count(launched, 0, now_s)
        if is_spent(launched, policy):
            break
        done += 1
        now_s += 0.01
    return done


def test_launches_without_progress_end_with_any_files() -> None:
    assert launches_in(86_400.0, POLICY) == 3 + 2 + SPARE


@given(st.integers(1, 1000), st.floats(0.1, 60.0))
def test_launches_have_a_rate(most: int, backoff_s: float) -> None:
    policy = Policy(max_fruitless_attempts=most, backoff_s=backoff_s, backoff_max_s=60.0)
    assert launches_in(150.0, policy) <= 3 + 150.0 / backoff_s


def test_a_newer_checkpoint_or_a_long_attempt_starts_the_count_again() -> None:
    launched = Launched()
    for number in range(100):
        launched = count(launched, number * 10, float(number))
        assert not is_spent(launched, POLICY)
    for number in range(100):
        launched = count(launched, 0, 1000.0 + number * LONG_S)
        assert not is_spent(launched, POLICY)


def test_an_older_checkpoint_is_no_progress() -> None:
    launched = count(count(Launched(), 50, 0.0), 40, 1.0)
    assert (launched.fruitless, launched.best_complete) == (1, 50)
