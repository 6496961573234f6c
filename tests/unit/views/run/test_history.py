import math
from itertools import pairwise
from pathlib import Path

import pytest

from prime_train.events import AttemptEnded, Evaluated, EventsDamaged, RunOpened, StopAsked
from prime_train.views.run import history
from prime_train.views.run.report_sections import changes
from tests.unit.views.written_runs import (
    BEGAN_S,
    DEATH,
    FIRST_ATTEMPT,
    SECOND_ATTEMPT,
    WHOLE_LIFE,
    write_metrics,
    write_run,
)


def test_the_whole_life_of_a_run(tmp_path: Path) -> None:
    found = history.gather(write_run(tmp_path, WHOLE_LIFE))
    assert found.name == "small"
    assert [(e.step, e.loss) for e in found.evaluations] == [(50, 5.75), (100, 4.625)]
    assert [save.step for save in found.saves] == [50, 100]
    assert found.vocab_loss == pytest.approx(math.log(4096))
    assert found.began_s == BEGAN_S
    assert found.ended_s == pytest.approx(BEGAN_S + 24.1)
    (restart,) = found.restarts
    assert restart.failed.what == "killed by signal 9 (SIGKILL)"
    assert restart.waited_s == pytest.approx(1.1)
    assert restart.steps_redone == 10


def test_evaluations_after_the_resumed_checkpoint_do_not_count(tmp_path: Path) -> None:
    beyond = (11.0, "trainer-001-rank0", Evaluated(1, 60, 5.0, 4096))
    found = history.gather(write_run(tmp_path, (*FIRST_ATTEMPT, beyond, *DEATH, *SECOND_ATTEMPT)))
    assert [evaluated.step for evaluated in found.evaluations] == [50]


def test_the_pause_between_two_supervisors_is_not_work(tmp_path: Path) -> None:
    again = (1000.0, "supervisor", RunOpened("small", 1, 100, "0.1.0"))
    stopped = (1002.0, "supervisor", StopAsked("SIGINT"))
    found = history.gather(write_run(tmp_path, (*FIRST_ATTEMPT, again, stopped)))
    assert found.worked_s == pytest.approx(10.0 + 2.0)


def test_how_long_a_run_lay_dead_is_not_known_when_its_supervisor_died_with_it(tmp_path: Path) -> None:
    found_dead = AttemptEnded(1, None, "failed", "signal", "it ended with its supervisor", "", "", "", 50)
    found = (*FIRST_ATTEMPT, (500.0, "supervisor", found_dead), *SECOND_ATTEMPT)
    (restart,) = history.gather(write_run(tmp_path, found)).restarts
    assert restart.waited_s is None


def test_metrics_keep_the_later_line_of_a_step_and_leave_out_a_torn_one(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    write_metrics(run_dir, 8)
    run_dir.metrics.write_text('{"step": 3, "loss": 99}\nnot json\n[1]\n' + run_dir.metrics.read_text())
    columns = history.read_metrics(run_dir.metrics)
    assert columns["step"] == list(range(1, 9))
    assert columns["loss"][2] == pytest.approx(8.3 - 0.09)
    assert all(math.isnan(value) for value in columns["mfu"])


def test_a_run_without_events_or_metrics_has_an_empty_history(tmp_path: Path) -> None:
    found = history.gather(write_run(tmp_path, ()))
    assert found.metrics["step"] == []
    assert found.evaluations == ()
    assert found.restarts == ()
    assert (found.began_s, found.vocab_loss, found.worked_s) == (None, None, 0.0)


def test_a_long_metrics_file_is_shown_by_a_part_of_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in range(1, 10_001)))
    whole = history.read_metrics(path)
    monkeypatch.setattr(history, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(history, "SAMPLED_LINES", 100)
    steps = history.read_metrics(path)["step"]
    assert (len(whole["step"]), steps[0], steps[-1]) == (10_000, 1, 10_000)
    assert 100 <= len(steps) <= 102
    assert max(after - before for before, after in pairwise(steps)) < 120


def test_hostile_lines_of_metrics_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    bad = ("[" * 200_000, '{"step": 1e999}', '{"step": {}}', '{"step": "x"}', "9" * 5000, "\x00" * 50)
    path.write_text("\n".join((*bad, '{"step": 3, "loss": 2.5}')) + "\n")
    assert history.read_metrics(path)["step"] == [3.0]


def test_events_that_could_not_be_used_are_in_the_report(tmp_path: Path) -> None:
    damaged = (24.2, "supervisor", EventsDamaged("supervisor.jsonl: 1 missing record"))
    found = history.gather(write_run(tmp_path, (*WHOLE_LIFE, damaged)))
    assert any("1 missing record" in line for line in changes(found.records, tmp_path))
