from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import GIB
from prime_train.estimate.calibrate import (
    ALLOCATOR,
    Calibration,
    calibrate_memory,
    calibrate_step,
    calibration_of,
    read_measurement,
)
from prime_train.estimate.values import Interval, RoleMemory, Term

_MEMORY = RoleMemory(
    "trainer",
    1,
    (Term("parameters", 6 * GIB, "a", "b"), Term("saved", 3 * GIB, "c", "d"), Term(ALLOCATOR, 1 * GIB, "e", "f")),
    Interval(9 * GIB, 10 * GIB, 13 * GIB),
    (Term("CUDA context", GIB, "", ""),),
)
_STEP = Interval(2.0, 4.0, 8.0)


def test_our_own_lines_report_what_was_allocated() -> None:
    lines = [{"step": n, "peak_memory_gib": 8.0 + n / 100, "step_s": s} for n, s in enumerate((90.0, 9.0, 4, 5, 6, 5))]
    measured = read_measurement(lines, "runs/a")
    assert measured.peak_bytes == pytest.approx(8.05 * GIB)
    assert not measured.is_reserved
    assert measured.step_s == (4, 5, 6, 5)


def test_lines_of_prime_rl_report_what_was_reserved() -> None:
    lines: list[dict[str, Any]] = [
        {"step": 1, "perf/peak_memory": 40.0},
        {"step": 1, "time/step": 3.0},
        {"step": 1, "reward/mean": 0.5},
        {"step": 2, "perf/peak_memory": 41.5, "time/step": 3.5},
    ]
    measured = read_measurement(lines, "metrics.jsonl")
    assert (measured.peak_bytes, measured.is_reserved, measured.step_s) == (41.5 * GIB, True, (3.0, 3.5))


@pytest.mark.parametrize(
    "lines",
    [
        [{"loss": 2.0}],
        [{"peak_reserved_gib": "41"}],
        [{"peak_reserved_gib": -1}],
        [{"peak_reserved_gib": float("nan")}],
        [{"step_s": float("inf")}],
        [{"step_s": True}],
    ],
)
def test_figures_that_can_be_none_are_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(UserError) as refused:
        read_measurement(lines, "m.json")
    assert refused.value.exit_code is ExitCode.FINDINGS
    assert "m.json" in refused.value.where


def test_reserved_is_held_against_all_terms_and_allocated_against_all_but_the_allocators() -> None:
    reserved = calibration_of(read_measurement([{"peak_reserved_gib": 11.0}], "m"), _MEMORY, None)
    allocated = calibration_of(read_measurement([{"peak_allocated_gib": 9.9}], "m"), _MEMORY, None)
    assert reserved.memory_ratio == pytest.approx(1.1)
    assert allocated.memory_ratio == pytest.approx(1.1)


def test_the_same_run_comes_out_as_measured_with_a_narrow_interval() -> None:
    calibration = calibration_of(read_measurement([{"peak_reserved_gib": 11.0}], "m"), _MEMORY, None)
    memory = calibrate_memory(_MEMORY, calibration)
    assert memory.reserved.typical == pytest.approx(11 * GIB)
    assert sum(term.bytes for term in memory.terms) == pytest.approx(memory.reserved.typical)
    assert memory.reserved.low == pytest.approx(11 * 0.98 * GIB)
    assert memory.reserved.high == pytest.approx(11 * 1.02 * GIB)
    assert memory.outside == _MEMORY.outside


def test_figures_of_another_run_are_refused() -> None:
    with pytest.raises(UserError, match="another config"):
        calibration_of(read_measurement([{"peak_reserved_gib": 0.5}], "m"), _MEMORY, None)


def test_the_interval_comes_back_the_farther_a_run_is_from_the_measured_one() -> None:
    calibration = calibration_of(read_measurement([{"peak_reserved_gib": 10.0}], "m"), _MEMORY, None)

    def width(factor: float) -> float:
        larger = _MEMORY._replace(
            terms=tuple(term._replace(bytes=term.bytes * factor) for term in _MEMORY.terms),
            reserved=_MEMORY.reserved.times(factor),
        )
        reserved = calibrate_memory(larger, calibration).reserved
        return (reserved.high - reserved.low) / reserved.typical

    assert width(1.0) < width(1.2) < width(1.4) < width(1.5) == pytest.approx(0.4)
    assert width(16.0) == pytest.approx(0.4)


def test_a_run_that_is_far_from_the_measured_one_keeps_its_estimate() -> None:
    calibration = calibration_of(read_measurement([{"peak_reserved_gib": 12.0}], "m"), _MEMORY, None)
    far = _MEMORY._replace(
        terms=tuple(term._replace(bytes=term.bytes * 3) for term in _MEMORY.terms), reserved=_MEMORY.reserved.times(3)
    )
    assert calibrate_memory(far, calibration).reserved == far.reserved


def test_steps_are_scaled_and_keep_the_spread_of_the_measured_ones() -> None:
    lines = [{"step_s": s} for s in (60.0, 9.0, 4.0, 5.0, 6.0, 5.0, 5.0, 5.0)]
    calibration = calibration_of(read_measurement(lines, "m"), None, _STEP)
    assert calibration.memory_ratio is None
    step = calibrate_step(_STEP, calibration)
    assert step.typical == pytest.approx(5.0)
    assert 4.0 <= step.low < 5.0 < step.high <= 6.0
    assert calibrate_memory(_MEMORY, calibration) == _MEMORY


def test_nothing_changes_without_a_measurement() -> None:
    assert calibrate_memory(_MEMORY, None) == _MEMORY
    assert calibrate_step(_STEP, None) == _STEP


@given(
    ratio=st.floats(0.34, 3.0),
    low=st.floats(0.3, 1.0),
    high=st.floats(1.0, 3.0),
    apart=st.floats(0.01, 100.0),
)
def test_an_interval_is_never_wider_than_before_and_holds_its_middle(
    ratio: float, low: float, high: float, apart: float
) -> None:
    wide = Interval(_STEP.typical * low, _STEP.typical, _STEP.typical * high)
    calibration = Calibration(None, 0.0, ratio, _STEP.typical * apart, 0.9, 1.2, "m")
    step = calibrate_step(wide, calibration)
    assert step.low <= step.typical <= step.high
    lesser, greater = sorted((1.0, ratio))
    assert lesser * wide.typical * (1 - 1e-9) <= step.typical <= greater * wide.typical * (1 + 1e-9)
    ratio = step.typical / wide.typical
    assert step.low >= min(ratio * wide.low, ratio * wide.typical * 0.9) * (1 - 1e-9)
    assert step.high <= max(ratio * wide.high, ratio * wide.typical * 1.2) * (1 + 1e-9)


@pytest.mark.parametrize("peak_gib", [6.0, 20.0])
def test_a_peak_far_outside_the_interval_is_of_another_config(peak_gib: float) -> None:
    with pytest.raises(UserError, match="another config") as refused:
        calibration_of(read_measurement([{"peak_reserved_gib": peak_gib}], "m"), _MEMORY, None)
    assert "--calibrate-config" in refused.value.fix


def test_a_scaled_measurement_names_what_differs_and_how_much_of_it_is_used() -> None:
    measured = read_measurement([{"peak_reserved_gib": 11.0}], "m")
    calibration = calibration_of(measured, _MEMORY, None, ("batch.micro_batch was 4 and is 8",))
    half = _MEMORY._replace(reserved=_MEMORY.reserved.times(1.5**0.5))
    assert "batch.micro_batch was 4 and is 8" in calibration.note(half)
    assert "50% of its ratio of 1.10 is used" in calibration.note(half)
    assert "it is not used" in calibration.note(_MEMORY._replace(reserved=_MEMORY.reserved.times(2.0)))
    assert calibration_of(measured, _MEMORY, None, ()).note(half) == ""
    assert "names no config" in calibration_of(measured, _MEMORY, None).note(half)
    assert calibration_of(read_measurement([{"peak_reserved_gib": 20.0}], "m"), _MEMORY, None, ()).memory_ratio == 2.0
