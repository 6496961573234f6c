import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.events import Evaluated, TasksEvaluated
from prime_train.events.bounds import MOST_STEPS, MOST_VALUE
from prime_train.supervise.core.state import AttemptState, evolve
from prime_train.views.run.history import gather
from prime_train.views.run.plots import draw, smooth
from tests.unit.views.written_runs import WHOLE_LIFE, write_metrics, write_run

_PNG = b"\x89PNG\r\n\x1a\n"


@given(st.floats(-1e6, 1e6), st.integers(1, 50), st.floats(1, 100))
def test_a_constant_stays_what_it_is(value: float, count: int, half_life: float) -> None:
    assert smooth([value] * count, half_life) == pytest.approx([value] * count, abs=1e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1), st.floats(1, 100))
def test_smoothing_stays_between_the_extremes(values: list[float], half_life: float) -> None:
    margin = 1e-6
    assert all(min(values) - margin <= value <= max(values) + margin for value in smooth(values, half_life))


def test_half_of_the_weight_lies_in_the_last_half_life() -> None:
    assert smooth([0.0] * 1000 + [1.0] * 10, 10.0)[-1] == pytest.approx(0.5)


def test_what_is_not_finite_is_passed_over() -> None:
    assert smooth([math.nan, 2.0, math.inf, 2.0], 1.0)[1:] == pytest.approx([2.0, 2.0, 2.0])


def test_two_plots_are_written_whole(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    write_metrics(run_dir, 100)
    paths = draw(gather(run_dir), run_dir.plots)
    assert [path.name for path in paths] == ["loss.png", "throughput.png"]
    assert all(path.read_bytes().startswith(_PNG) for path in paths)
    assert sorted(path.name for path in run_dir.plots.iterdir()) == ["loss.png", "throughput.png"]


def test_a_plot_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    write_metrics(run_dir, 100)
    (run_dir.plots / "loss.png").mkdir(parents=True)  # a folder cannot be replaced by a file, so the write fails
    with pytest.raises(IsADirectoryError):
        draw(gather(run_dir), run_dir.plots)
    assert [path.name for path in run_dir.plots.iterdir()] == ["loss.png"]


def test_nothing_is_drawn_before_the_first_step(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    assert draw(gather(run_dir), run_dir.plots) == []
    assert not run_dir.plots.exists()


@pytest.mark.parametrize("column", ["step", "loss", "tokens_per_s", "reward"])
@pytest.mark.parametrize("value", [1e308, 2**63 - 1])
def test_a_forged_line_of_metrics_is_drawn_or_left_out(tmp_path: Path, column: str, value: float) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    write_metrics(run_dir, 20)
    last = json.loads(run_dir.metrics.read_text().splitlines()[0])
    with run_dir.metrics.open("a") as file:
        for number, forged in enumerate((value, -value), 1):
            file.write(json.dumps(last | {"step": 100 + number} | {column: forged}) + "\n")
    paths = draw(gather(run_dir), run_dir.plots)
    assert all(path.read_bytes().startswith(_PNG) for path in paths)


@pytest.mark.parametrize("value", [MOST_VALUE, -MOST_VALUE, math.inf, math.nan])
def test_results_and_restarts_at_the_ends_of_their_ranges_are_drawn(tmp_path: Path, value: float) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    write_metrics(run_dir, 20)
    history = gather(run_dir)
    failed = AttemptState(1, last_step=MOST_STEPS, outcome="failed")
    history = history._replace(
        state=evolve(history.state, attempts=(failed, AttemptState(2, resume_step=MOST_STEPS))),
        evaluations=(Evaluated(1, 5, 1.0, 1), Evaluated(1, MOST_STEPS, value, 1)),
        task_evaluations=(TasksEvaluated(1, MOST_STEPS, "a", value, 1, 0, 1.0),),
    )
    assert len(draw(history, run_dir.plots)) == 3
