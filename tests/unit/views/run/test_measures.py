"""The values of sets of text and benchmarks in the views."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from prime_train.events import Measured
from prime_train.views import wandb_rows
from prime_train.views.run import measures, report, status
from prime_train.views.run.history import gather, summarize
from prime_train.views.run.status_document import as_lines, status_document
from tests.unit.views.written_runs import DEATH, FIRST_ATTEMPT, SECOND_ATTEMPT, Timeline, write_run

_TRAINER = "trainer-001-rank0"
_MEASURED: Timeline = (
    (9.5, _TRAINER, Measured(1, 50, "wiki", "loss", 4.5, 4096)),
    (9.6, _TRAINER, Measured(1, 50, "wiki", "bits_per_byte", 1.75, 16384)),
    (9.7, _TRAINER, Measured(1, 50, "hellaswag", "acc_norm", 0.25, 10042)),
    (10.5, _TRAINER, Measured(1, 60, "wiki", "loss", 4.25, 4096)),
)
_LATER: Timeline = (
    (22.5, "trainer-002-rank0", Measured(2, 100, "wiki", "loss", 3.5, 4096)),
    (22.6, "trainer-002-rank0", Measured(2, 100, "wiki", "bits_per_byte", 1.25, 16384)),
    (22.7, "trainer-002-rank0", Measured(2, 100, "hellaswag", "acc_norm", 0.2945, 10042)),
)
_LINES = [
    "wiki: loss 4.5000 -> 3.5000, bits_per_byte 1.7500 -> 1.2500 (step 100)",
    "hellaswag: acc_norm 0.2500 -> 0.2945 (step 100)",
]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run that is killed at step 60 and resumes from step 50."""
    first = sorted((*FIRST_ATTEMPT, *_MEASURED), key=lambda event: event[0])
    return write_run(tmp_path / "small", (*first, *DEATH, *SECOND_ATTEMPT, *_LATER))


def test_the_report_has_the_first_and_the_latest_value(run_dir: RunDir) -> None:
    text = report.text(gather(run_dir), [], "")
    for part in (
        "| evaluation | metric | first | latest | tokens, bytes or examples |",
        "| wiki | loss | 4.5000 at step 50 | 3.5000 at step 100 | 4,096 |",
        "| wiki | bits_per_byte | 1.7500 at step 50 | 1.2500 at step 100 | 16,384 |",
        "| hellaswag | acc_norm | 0.2500 at step 50 | 0.2945 at step 100 | 10,042 |",
    ):
        assert part in text, part


def test_a_value_that_a_restart_repeats_is_left_out(run_dir: RunDir) -> None:
    assert [one.step for one in gather(run_dir).measured] == [50, 50, 50, 100, 100, 100]
    assert [one.step for one in status.fold_events(run_dir).measured] == [50, 50, 50, 100, 100, 100]


def test_status_and_summary_name_each_evaluation(run_dir: RunDir) -> None:
    found = status_document(status.read_status(run_dir, 30.0))
    assert [text for label, text in as_lines(found) if label == "evaluation"] == _LINES
    _, lines = summarize(run_dir, "again", "longer")
    assert [text for label, text in lines if label == "evaluation"] == _LINES
    assert found["measured"][0] == {
        "name": "wiki",
        "metric": "loss",
        "first_step": 50,
        "first_value": 4.5,
        "step": 100,
        "value": 3.5,
        "count": 4096,
    }


def test_a_run_without_them_has_no_table(tmp_path: Path) -> None:
    assert "| evaluation |" not in report.text(gather(write_run(tmp_path, FIRST_ATTEMPT)), [], "")
    assert measures.describe(()) == []


def test_a_name_of_the_run_directory_cannot_break_the_table() -> None:
    text = measures.section([Measured(1, 1, "a | b\nc", "m", 0.5, 1)])
    assert len(text.splitlines()) == 3


def test_each_value_is_a_row_at_wandb() -> None:
    counts = wandb_rows.Counts()
    event = Measured(1, 40, "wiki", "bits_per_byte", 1.5, 10)
    expected = wandb_rows.WandbRow(40, {"eval/wiki/bits_per_byte": 1.5})
    assert wandb_rows.of_event(event, counts, 60) == (counts, expected, None)
