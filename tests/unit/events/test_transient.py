from __future__ import annotations

import errno

import pytest

from prime_train.events.record import LIMIT_S, TRANSIENT, retry


class Time:
    """A clock that moves only when something sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> float:
        return self.now_s


def failing(numbers: list[int]) -> str:
    if numbers:
        number = numbers.pop(0)
        raise OSError(number, "no")
    return "done"


@pytest.mark.parametrize("number", sorted(TRANSIENT))
def test_an_error_that_passes_is_tried_again(number: int) -> None:
    time, repeated = Time(), []
    left = [number] * 3
    assert (
        retry(lambda: failing(left), lambda error: repeated.append(error.errno), clock=time.clock, sleep=time.sleep)
        == "done"
    )
    assert repeated == [number] * 3


def test_an_error_that_does_not_pass_is_raised_when_the_time_is_over() -> None:
    time = Time()
    with pytest.raises(OSError, match="no"):
        retry(lambda: failing([errno.ESTALE]), clock=time.clock, sleep=time.sleep)
    assert LIMIT_S <= time.now_s < LIMIT_S + 2


def test_any_other_error_is_raised_at_once() -> None:
    time = Time()
    with pytest.raises(OSError, match="no"):
        retry(lambda: failing([errno.ENOSPC]), clock=time.clock, sleep=time.sleep)
    assert time.now_s == 0.0
