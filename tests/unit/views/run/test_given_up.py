from __future__ import annotations

import pytest

from prime_train.events import Event, LaunchAsked, Progress, Record
from prime_train.views.run.given_up import measure_given_up


def records(*timeline: tuple[float, Event]) -> list[Record]:
    return [Record(at_s, "w", number, event) for number, (at_s, event) in enumerate(timeline)]


def progress(step: int, attempt: int = 1) -> Progress:
    return Progress(attempt, step, 1.0, 1.0, 1)


def test_the_time_after_the_step_counts_also_within_a_stretch() -> None:
    found = records((0.0, LaunchAsked(1, 0)), (10.0, progress(1)), (110.0, progress(101)), (120.0, progress(111)))
    steps, seconds = measure_given_up(found, 51)
    assert (steps, seconds) == pytest.approx((60, 60.0))
    assert measure_given_up(found, 111) == (0, 0.0)
    assert measure_given_up(found, 500) == (0, 0.0)


def test_what_a_failure_took_back_and_a_pause_do_not_count() -> None:
    found = records(
        *((0.0, LaunchAsked(1, 0)), (1.0, progress(1)), (101.0, progress(101))),
        *((5000.0, LaunchAsked(2, 51)), (5010.0, progress(52, 2)), (5020.0, progress(62, 2))),
    )
    steps, seconds = measure_given_up(found, 41)
    assert (steps, seconds) == pytest.approx((21, 10.0 + 10.0))
    assert measure_given_up([], 5) == (0, 0.0)
