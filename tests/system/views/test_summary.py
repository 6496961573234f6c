from pathlib import Path

from prime_train.events import RunClosed, Sampled
from prime_train.views.run import history, report
from tests.unit.views.written_runs import DEATH, FIRST_ATTEMPT, WHOLE_LIFE, write_metrics, write_run


def test_a_finished_run_shows_loss_sample_checkpoint_plot_and_report(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    write_metrics(run_dir, 100)
    report.write(run_dir)
    title, lines = history.summarize(run_dir, "again", "longer")
    assert title == "small finished: step 100 of 100 in 24 s"
    assert dict(lines) == {
        "restart 1": "killed by signal 9 (SIGKILL) at step 60; resumed 1.1 s later from step 50",
        "held-out loss": "5.7500 -> 4.6250, 44% below ln(vocabulary) = 8.3178",
        "checkpoint": str(run_dir.checkpoint(100)),
        "sample": "import sys\n```\nimport os",
        "plot": str(run_dir.plots / "loss.png"),
        "report": str(run_dir.report),
        "train longer": "longer",
    }


def test_a_failed_run_shows_why_and_how_to_continue(tmp_path: Path) -> None:
    closed = (12.5, "supervisor", RunClosed("failed", 6, "1 attempt in a row"))
    title, lines = history.summarize(write_run(tmp_path, (*FIRST_ATTEMPT, *DEATH, closed)), "again", "longer")
    assert title == "small failed: step 60 of 100 in 12 s"
    assert ("what", "1 attempt in a row") in lines
    assert ("why", "something outside sent it") in lines
    assert lines[-1] == ("continue", "again")


def test_a_long_sample_is_cut(tmp_path: Path) -> None:
    sampled = (9.5, "trainer-001-rank0", Sampled(1, 60, "", "line\n" * 30))
    _, lines = history.summarize(write_run(tmp_path, (*FIRST_ATTEMPT, sampled)), "again", "longer")
    assert dict(lines)["sample"].splitlines() == ["line"] * 8 + ["..."]
