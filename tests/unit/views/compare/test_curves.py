"""Curves: each step as it was made last, in a bounded number of points whose lows and highs are kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.rundir import RunDir
from prime_train.events import Evaluated, Event, LaunchAsked, Progress, Record
from prime_train.views.compare.curves import MOST_BINS, Curve, Curves, StepBins, read_curves
from tests.unit.views.compare.made import write_compared, write_lines
from tests.unit.views.written_runs import BEGAN_S, WHOLE_LIFE, write_events, write_run


def line(step: int, loss: Any = 2.0, **more: Any) -> dict[str, Any]:
    return {"step": step, "loss": loss, "step_s": 0.5, "tokens_seen": step * 10, "tokens_per_s": 20.0} | more


def read(tmp_path: Path, *lines: dict[str, Any]) -> Curves:
    run_dir = RunDir(tmp_path / "one")
    run_dir.events.mkdir(parents=True)
    write_lines(run_dir, lines)
    return read_curves(run_dir)


def values(curve: Curve) -> dict[int, float]:
    return {point.step: point.value for point in curve}


def test_a_repeated_step_has_the_value_of_the_last_attempt_and_counts_once(tmp_path: Path) -> None:
    found = read(tmp_path, line(1, 9.0), line(2, 8.0), line(3, 7.0), line(2, 6.0), line(3, 5.0), line(4, 4.0))
    assert values(found.by_metric["loss"]) == {1: 9.0, 2: 6.0, 3: 5.0, 4: 4.0}
    assert [point.hours * 3600 for point in found.by_metric["loss"]] == [0.5, 1.0, 1.5, 2.0]
    assert [point.tokens for point in found.by_metric["loss"]] == [10, 20, 30, 40]


def test_steps_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    found = read(tmp_path, *(line(step, float(step)) for step in (5, 1, 4, 2, 3)))
    assert values(found.by_metric["loss"]) == {step: float(step) for step in range(1, 6)}


def test_what_is_not_finite_is_counted_and_not_drawn(tmp_path: Path) -> None:
    losses = [2.0, math.nan, math.inf, -math.inf, 1e300, None, 3.0]
    found = read(tmp_path, *(line(step, loss) for step, loss in enumerate(losses)))
    assert values(found.by_metric["loss"]) == {0: 2.0, 6: 3.0}
    assert "5 values not finite, and not drawn" in found.notes


@pytest.mark.parametrize("step", [-1, 1.5, 10**13, True, "7", None])
def test_a_line_that_is_no_step_is_counted(tmp_path: Path, step: object) -> None:
    found = read(tmp_path, line(1), line(1) | {"step": step})
    assert len(found.by_metric["loss"]) == 1
    assert "1 line of metrics.jsonl cannot be read" in found.notes


def test_lines_that_are_no_json_are_counted_and_one_that_is_being_written_is_not(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path, "one")
    run_dir.metrics.write_bytes(b'[1]\n\xff\xfe\n{"step": 1, "loss": 2.5}\n' + b"[" * 3_000_000 + b'\n{"step": 2, "lo')
    found = read_curves(run_dir)
    assert values(found.by_metric["loss"]) == {1: 2.5}
    assert "5 lines of metrics.jsonl cannot be read" in found.notes, "the long one counts once for each MiB"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_metrics_that_are_no_regular_file_are_named(tmp_path: Path, kind: str) -> None:
    import os

    run_dir = write_compared(tmp_path, "one")
    if kind == "link":
        run_dir.metrics.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(run_dir.metrics)
    else:
        run_dir.metrics.mkdir()
    found = read_curves(run_dir)
    assert any(note.startswith("metrics.jsonl is not read") for note in found.notes)
    assert found.by_metric["loss"], "the events have the steps, too"


def test_a_run_without_a_step_has_a_note(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.by_metric, found.notes, found.last_step) == ({}, ("no step was recorded",), 0)


def test_the_steps_of_another_trainer_come_from_its_events(tmp_path: Path) -> None:
    found = read_curves(write_run(tmp_path / "one", WHOLE_LIFE))
    assert values(found.by_metric["loss"]) == {10: 7.5, 50: 5.5, 60: 5.25, 100: 4.5}
    assert values(found.by_metric["held_out"]) == {50: 5.75, 100: 4.625}
    hours = [point.hours * 3600 for point in found.by_metric["loss"]]
    assert hours == pytest.approx([0, 5, 5, 11]), "the six seconds to step 100, and no pause between the attempts"
    assert [point.tokens for point in found.by_metric["held_out"]] == [102_400, 204_800]


def test_a_trainer_that_resumes_by_itself_loses_no_step(tmp_path: Path) -> None:
    """Its second attempt was launched from step 0, as far as the supervisor knows, and went on at step 21."""
    run_dir = RunDir(tmp_path / "one")
    events: tuple[Event, ...] = (
        LaunchAsked(1, 0), Progress(1, 10, 3.0, None, 0), Progress(1, 20, 2.0, None, 0), Progress(1, 30, 1.9, None, 0),
        LaunchAsked(2, 0), Progress(2, 21, 1.0, None, 0),
    )  # fmt: skip
    write_events(run_dir, [Record(BEGAN_S + place, "supervisor", place, event) for place, event in enumerate(events)])
    assert values(read_curves(run_dir).by_metric["loss"]) == {10: 3.0, 20: 2.0, 21: 1.0}


def test_steps_that_no_later_attempt_reaches_are_dropped_with_their_checkpoint(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "one")
    events: tuple[Event, ...] = (
        LaunchAsked(1, 0),
        *(Progress(1, step, float(step), None, 0) for step in (10, 20, 30)),
        Evaluated(1, 30, 3.0, 10),
        LaunchAsked(2, 10),
        Progress(2, 15, 1.5, None, 0),
    )
    write_events(run_dir, [Record(BEGAN_S + place, "supervisor", place, event) for place, event in enumerate(events)])
    found = read_curves(run_dir)
    assert values(found.by_metric["loss"]) == {10: 10.0, 15: 1.5}
    assert set(found.by_metric) == {"loss"}
    assert math.isnan(found.by_metric["loss"][0].tokens), "a trainer that counts no tokens has seen an unknown number"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(0, 40), st.integers(1, 3))
def test_bins_keep_lows_highs_and_steps_at_any_width(losses: list[float], back: int, stride: int) -> None:
    """As many steps as MOST_BINS are hardly more work than 16, which are as good a limit."""
    bins, most = StepBins(1), 16
    restart = max(0, len(losses) - back)
    written = [*range(len(losses)), *range(restart, len(losses))]
    for place in written:
        bins.add(place * stride, math.nan, 1.0, (losses[place],))
        while len(bins.bins) > most:
            bins._halve()
    curve = bins.curve(0)
    assert len(curve) <= most
    assert [point.step for point in curve] == sorted({point.step for point in curve})
    assert curve[-1].step == (len(losses) - 1) * stride
    assert all(point.low <= point.value <= point.high for point in curve)
    if not back:
        assert (min(point.low for point in curve), max(point.high for point in curve)) == (min(losses), max(losses))
        assert curve[-1].hours * 3600 == pytest.approx(len(losses))
    else:
        assert curve[-1].hours * 3600 <= len(losses) + 1e-6, "no step counts twice"


def test_a_long_run_is_bounded_and_its_spike_is_kept() -> None:
    bins = StepBins(3)
    for step in range(50_000):
        bins.add(step, step, 0.1, (100.0 if step == 12_345 else 1.0, math.nan, 5.0))
    curve = bins.curve(0)
    assert len(curve) <= MOST_BINS
    assert max(point.high for point in curve) == 100.0
    assert bins.curve(1) == ()


def test_a_run_that_grows_while_it_is_read_is_read_up_to_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line that is read makes the file longer, so only a reading with an end returns."""
    run_dir = write_compared(tmp_path, "one")
    write_lines(run_dir, [line(step) for step in range(10)])
    steps: Iterator[int] = itertools.count(10)
    added = StepBins.add

    def add_and_grow(self: StepBins, *arguments: Any) -> None:
        added(self, *arguments)
        with open(run_dir.metrics, "a", encoding="utf-8") as file:
            file.write(f'{{"step": {next(steps)}, "loss": 1.0}}\n')

    monkeypatch.setattr(StepBins, "add", add_and_grow)
    assert [point.step for point in read_curves(run_dir).by_metric["loss"]] == list(range(10))
