"""The curves of the page: followed in any pieces, they are those of the whole file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.control import curves
from prime_train.control.curves import CurveFollower
from prime_train.core.rundir import RunDir
from tests.unit.views.written_runs import FIRST_ATTEMPT, records, write_metrics


def read_all(follower: CurveFollower) -> object:
    while follower.poll():
        pass
    return follower.document()


@given(st.lists(st.integers(0, 10_000), max_size=5))
@settings(max_examples=30, deadline=None)
def test_a_file_that_grows_in_any_pieces_has_the_curves_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    write_metrics(run_dir, 40)
    content = run_dir.metrics.read_bytes()
    run_dir.metrics.write_bytes(b"")
    follower = CurveFollower(run_dir)
    for end in [*sorted(min(cut, len(content)) for cut in cuts), len(content)]:
        run_dir.metrics.write_bytes(content[:end])
        read_all(follower)
    assert follower.document() == read_all(CurveFollower(run_dir))
    assert follower.last["data_s"] == 0.0625


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    write_metrics(run_dir, 20)
    follower = CurveFollower(run_dir)
    read_all(follower)
    run_dir.metrics.unlink()
    run_dir.metrics.write_text('{"step": 3, "loss": 2.5}\n', encoding="utf-8")
    assert read_all(follower) == {"loss": {"step": [3], "value": [2.5]}}


def test_a_trainer_without_metrics_has_the_curve_of_its_events(tmp_path: Path) -> None:
    follower = CurveFollower(RunDir(tmp_path))
    for record in records(FIRST_ATTEMPT):
        follower.add(record)
    assert follower.document() == {
        "loss": {"step": [10, 50, 60], "value": [7.5, 5.5, 5.25]},
        "tokens_per_s": {"step": [10, 50, 60], "value": [4000.0, 4100.0, 4200.0]},
        "held_out": {"step": [50], "value": [5.75]},
    }


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"{",
        b'{"step": true, "loss": 1}',
        b'{"step": -1, "loss": 1}',
        b'{"step": 1.5, "loss": 1}',
        b'{"step": 1, "loss": 1e999}',
        b"xx",
    ],
)
def test_a_damaged_line_is_left_out(tmp_path: Path, line: bytes) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.metrics.write_bytes(line + b"\n" + b'{"step": 2, "loss": 1.5, "reward": NaN, "lr": 1e300}\n')
    assert read_all(CurveFollower(run_dir)) == {"loss": {"step": [2], "value": [1.5]}}


def test_a_long_run_has_a_bounded_number_of_points_and_its_spike(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    lines = [json.dumps({"step": step, "loss": 99.0 if step == 777 else 1.0}) for step in range(1, 5001)]
    run_dir.metrics.write_text("\n".join((*lines, "")), encoding="utf-8")
    follower = CurveFollower(run_dir)
    read_all(follower)
    loss = follower.document()["loss"]
    assert len(loss["step"]) <= curves._MOST_POINTS
    assert max(loss["high"]) == 99.0


def test_a_line_without_an_end_is_not_read_again_and_again(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.metrics.write_bytes(b"x" * (3 << 20) + b"\n" + b'{"step": 1, "loss": 2.0}\n')
    assert read_all(CurveFollower(run_dir)) == {"loss": {"step": [1], "value": [2.0]}}
