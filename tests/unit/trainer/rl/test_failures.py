"""Failed rollouts: their events, and the limit that ends a run."""

from __future__ import annotations

import pytest

from prime_train.core.errors import UserError
from prime_train.trainer.rl.rollouts.rollout import FIRST, WINDOW, Failed, Failures, Rollout

GOOD = Rollout("a", 0, (1,), (True,), (0.0,), 1.0, 1, False, 1)
BAD = Failed("a", 3, "KeyError: 'x'", "the traceback")


def fill(good: int, bad: int, ratio: float = 0.25, window: int = 0) -> Failures:
    failures = Failures(2, ratio, window)
    for _ in range(good):
        failures.add(GOOD)
    for _ in range(bad):
        failures.add(BAD)
    return failures


@pytest.mark.parametrize(("good", "bad"), [(0, 0), (0, FIRST - 1), (1, WINDOW - 2), (WINDOW * 3 // 4, WINDOW // 4)])
def test_a_run_goes_on(good: int, bad: int) -> None:
    fill(good, bad).check()


@pytest.mark.parametrize(("good", "bad"), [(0, FIRST), (1, WINDOW - 1), (500, WINDOW // 4 + 1)])
def test_too_many_failures_end_the_run(good: int, bad: int) -> None:
    with pytest.raises(UserError) as error:
        fill(good, bad).check()
    assert "KeyError: 'x'" in error.value.what
    assert error.value.where == "environment a, task 3"
    assert "rl.max_failed_ratio = 0.25" in error.value.why


def test_a_ratio_of_1_goes_on_with_a_single_success() -> None:
    fill(1, 500, ratio=1.0).check()


def test_a_ratio_of_0_ends_at_the_first_failure_of_a_full_window() -> None:
    with pytest.raises(UserError):
        fill(WINDOW, 1, ratio=0.0).check()


def test_a_larger_batch_has_a_larger_window() -> None:
    fill(500, 100, window=512).check()
    with pytest.raises(UserError):
        fill(500, 129, window=512).check()


def test_events_count_since_the_last_report() -> None:
    failures = fill(3, 2)
    failures.add(Failed("b", 0, "slow", "another traceback"))
    first, second = failures.report(7)
    assert (first.attempt, first.step, first.environment, first.failed, first.asked) == (2, 7, "a", 2, 5)
    assert (first.reason, first.traceback) == ("KeyError: 'x'", "the traceback")
    assert (second.environment, second.failed, second.asked, second.traceback) == ("b", 1, 1, "")
    assert failures.report(8) == []
    failures.add(GOOD)
    assert failures.report(8) == []
    failures.add(BAD)
    (third,) = failures.report(9)
    assert (third.failed, third.asked, third.traceback) == (1, 1, "")
