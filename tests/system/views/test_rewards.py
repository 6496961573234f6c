from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from prime_train.events import RolloutsFailed, TasksEvaluated
from prime_train.views.run import report, status
from prime_train.views.run.history import gather, summarize
from prime_train.views.run.plots import draw
from prime_train.views.run.status_document import as_lines, status_document
from tests.unit.views.written_runs import (
    DEATH,
    FIRST_ATTEMPT,
    SECOND_ATTEMPT,
    Timeline,
    write_reward_metrics,
    write_run,
)

_TRACE = "Traceback (most recent call last):\n  File \"sums.py\", line 3\nKeyError: 'answer'"
_TRAINER = "trainer-001-rank0"
_TASKS: Timeline = (
    (2.5, _TRAINER, TasksEvaluated(1, 0, "sort-digits", 0.125, 64, 0, 9.0)),
    (3.5, _TRAINER, RolloutsFailed(1, 12, "sort-digits", 2, 64, "KeyError: 'answer'", _TRACE)),
    (9.5, _TRAINER, TasksEvaluated(1, 50, "sort-digits", 0.5, 62, 2, 7.0)),
    (9.6, _TRAINER, RolloutsFailed(1, 50, "sort-digits", 1, 64, "KeyError: 'answer'")),
    (10.5, _TRAINER, TasksEvaluated(1, 60, "sort-digits", 0.625, 64, 0, 7.0)),
)
_LATER: Timeline = ((22.5, "trainer-002-rank0", TasksEvaluated(2, 100, "sort-digits", 0.9375, 64, 0, 6.5)),)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of rewards that is killed at step 60 and resumes from step 50."""
    first = sorted((*FIRST_ATTEMPT, *_TASKS), key=lambda event: event[0])
    return write_run(tmp_path / "small", (*first, *DEATH, *SECOND_ATTEMPT, *_LATER))


def test_the_report_has_the_rewards_and_what_failed(run_dir: RunDir) -> None:
    write_reward_metrics(run_dir, 100, warmup_steps=20)
    text = report.text(gather(run_dir), ["plots/reward.png"], "")
    for part in (
        "## Rewards\n\n![reward](plots/reward.png)",
        "Held-out tasks of sort-digits: mean reward 0.125 at step 0 -> 0.938 at step 100.",
        "| 50 | sort-digits | 0.500 | 62 | 2 | 7.0 |",
        "| of the rollouts | first 8 steps | last 8 steps |",
        "| mean reward | 0.056 | 0.956 |",
        "| engine against trainer, nats per token | 0.000001 | 0.000001 |",
        "Rollouts: 5,120 scored, 160 cut off by a token limit, 80 failed in an environment. 80 of 640 groups had equal "
        "rewards, which teach nothing.",
        "| sort-digits | 3 | KeyError: 'answer' |",
        "KeyError: 'answer'\n```",
        "| wait for rollouts | 500.0 ms |",
    ):
        assert part in text, part


def test_an_evaluation_that_a_restart_repeats_is_left_out(run_dir: RunDir) -> None:
    assert [evaluated.step for evaluated in gather(run_dir).task_evaluations] == [0, 50, 100]


def test_a_run_without_rewards_has_no_section_of_them(tmp_path: Path) -> None:
    assert "Rewards" not in report.text(gather(write_run(tmp_path, FIRST_ATTEMPT)), [], "")


def test_the_summary_and_the_status_have_the_scores(run_dir: RunDir) -> None:
    _, lines = summarize(run_dir, "again", "longer")
    assert ("held-out tasks", "sort-digits: mean reward 0.125 at step 0 -> 0.938 at step 100") in lines
    seen = status_document(status.read_status(run_dir, 0.0))
    shown = as_lines(seen)
    assert ("held-out tasks", "sort-digits: mean reward 0.125 -> 0.938 (step 100)") in shown
    assert ("rollouts", "3 rollouts failed in an environment") in shown
    score = {"environment": "sort-digits", "first_step": 0, "step": 100, "first_reward": 0.125, "reward": 0.9375}
    assert seen["tasks"] == [score]


def test_the_reward_is_drawn_with_the_other_plots(run_dir: RunDir) -> None:
    write_reward_metrics(run_dir, 100, warmup_steps=20)
    paths = draw(gather(run_dir), run_dir.plots)
    assert [path.name for path in paths] == ["loss.png", "throughput.png", "reward.png"]
