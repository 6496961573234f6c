"""The learning rate: written values, and what holds for every schedule."""

import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.spec import Schedule
from prime_train.spec.run import lr_ratio


def ratios(schedule: Schedule, max_steps: int) -> list[float]:
    return [lr_ratio(schedule, step, max_steps) for step in range(max_steps)]


schedules = st.builds(
    Schedule,
    kind=st.sampled_from(["cosine", "linear", "inverse-sqrt", "wsd", "constant"]),
    warmup_steps=st.integers(0, 60),
    decay_steps=st.none() | st.integers(1, 60),
    decay=st.sampled_from(["linear", "sqrt"]),
    min_lr_ratio=st.floats(0, 1),
)


@given(schedule=schedules, max_steps=st.integers(1, 50))
def test_it_stays_between_zero_and_the_peak(schedule: Schedule, max_steps: int) -> None:
    written = ratios(schedule, max_steps)
    assert all(0 <= ratio <= 1 for ratio in written)
    floor = schedule.min_lr_ratio if schedule.kind != "constant" else 1.0
    assert all(ratio >= floor - 1e-12 for ratio in written[schedule.warmup_steps :])


@given(schedule=schedules, max_steps=st.integers(2, 50))
def test_it_rises_then_falls(schedule: Schedule, max_steps: int) -> None:
    written = ratios(schedule, max_steps)
    turn = min(schedule.warmup_steps, max_steps)
    assert written[:turn] == sorted(written[:turn])
    assert written[max(0, turn - 1) :] == sorted(written[max(0, turn - 1) :], reverse=True)
    assert schedule.warmup_steps == 0 or written[0] > 0


@given(schedule=schedules, max_steps=st.integers(61, 200))
def test_it_ends_at_the_floor_and_the_warm_up_at_the_peak(schedule: Schedule, max_steps: int) -> None:
    floor = schedule.min_lr_ratio if schedule.kind != "constant" else 1.0
    if schedule.kind == "inverse-sqrt":  # it never ends
        floor = max(floor, math.sqrt(max(1, schedule.warmup_steps) / max_steps))
    assert lr_ratio(schedule, max_steps - 1, max_steps) == pytest.approx(floor)
    if schedule.warmup_steps:
        assert lr_ratio(schedule, schedule.warmup_steps - 1, max_steps) == 1.0


@given(warmup_steps=st.integers(1, 100), kind=st.sampled_from(["cosine", "wsd", "constant"]))
def test_the_warm_up_is_linear(warmup_steps: int, kind: Literal["cosine", "wsd", "constant"]) -> None:
    written = ratios(Schedule(kind=kind, warmup_steps=warmup_steps), 200)
    assert written[:warmup_steps] == [(step + 1) / warmup_steps for step in range(warmup_steps)]


def test_constant() -> None:
    assert ratios(Schedule(kind="constant", warmup_steps=2), 5) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_cosine() -> None:
    schedule = Schedule(kind="cosine", warmup_steps=2, min_lr_ratio=0.1)
    half = math.sqrt(0.5) / 2
    expected = [0.5, 1.0, 0.1 + 0.9 * (0.5 + half), 0.55, 0.1 + 0.9 * (0.5 - half), 0.1]
    assert ratios(schedule, 6) == pytest.approx(expected)


def test_wsd_linear() -> None:
    schedule = Schedule(kind="wsd", warmup_steps=2, decay_steps=4, decay="linear", min_lr_ratio=0.0)
    assert ratios(schedule, 8) == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_wsd_sqrt() -> None:
    """1 - sqrt(progress): arXiv 2405.18392, s. 3."""
    schedule = Schedule(kind="wsd", decay_steps=4, decay="sqrt", min_lr_ratio=0.2)
    expected = [1.0, 1.0, 0.2 + 0.8 * 0.5, 0.2 + 0.8 * (1 - math.sqrt(0.5)), 0.2 + 0.8 * (1 - math.sqrt(0.75)), 0.2]
    assert ratios(schedule, 6) == pytest.approx(expected)


def test_wsd_decays_over_a_fifth_unless_it_is_set() -> None:
    written = ratios(Schedule(kind="wsd"), 100)
    assert written[:80] == [1.0] * 80
    assert written[80] < 1.0


def test_a_decay_longer_than_the_run_begins_after_the_warm_up() -> None:
    schedule = Schedule(kind="wsd", warmup_steps=2, decay_steps=100, decay="linear", min_lr_ratio=0.0)
    assert ratios(schedule, 6) == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_one_step_and_a_warm_up_longer_than_the_run() -> None:
    assert ratios(Schedule(kind="cosine", min_lr_ratio=0.1), 1) == [0.1]
    assert ratios(Schedule(kind="cosine", warmup_steps=10), 2) == [0.1, 0.2]


def test_linear() -> None:
    schedule = Schedule(kind="linear", warmup_steps=2, min_lr_ratio=0.2)
    assert ratios(schedule, 6) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_inverse_sqrt() -> None:
    """sqrt(warm-up / step): T5, arXiv 1910.10683, s. 3.1.2."""
    schedule = Schedule(kind="inverse-sqrt", warmup_steps=4, min_lr_ratio=0.4)
    assert ratios(schedule, 36)[:4] == [0.25, 0.5, 0.75, 1.0]
    assert ratios(schedule, 36)[15] == 0.5
    assert ratios(schedule, 36)[35] == 0.4
    assert ratios(Schedule(kind="inverse-sqrt"), 4) == pytest.approx([1.0, math.sqrt(0.5), math.sqrt(1 / 3), 0.5])
