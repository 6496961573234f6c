"""metrics.jsonl has one line per step, also after restarts."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.events import AlarmRaised, Progress
from prime_train.trainer.attempt import Replica
from prime_train.trainer.loops.metrics import Metrics, QuorumMetrics, StepMetrics, drop_after, step_metrics
from prime_train.trainer.loops.spikes import StepResult
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.parallel import World
from prime_train.trainer.saves.checkpoint import TrainPosition
from tests.unit.trainer import tiny

LINE = StepMetrics(
    step=1,
    loss=2.5,
    lr=1e-3,
    grad_norm=1.0,
    tokens=100,
    tokens_seen=100,
    tokens_per_s=50.0,
    step_s=2.0,
    data_s=0.1,
    forward_backward_s=1.5,
    optimizer_s=0.3,
    checkpoint_s=0.1,
    peak_memory_gib=0.5,
    mfu=None,
)


RESULT = StepResult(
    loss=2.0, grad_norm=1.0, tokens=1000, stop=False, forward_backward_s=1.5, wait_s=0.1, optimizer_s=0.25
)


def measured(peak_flops: float | None, ranks: int = 1) -> StepMetrics:
    """The line of a step that took 2 s, of a model of 3 MFLOP per token."""
    model = tiny.decoder()
    device = replace(tiny.CPU, peak_flops=peak_flops)
    training = Training(model, adamw(model, spec.Optim()), World(rank=0, size=ranks), device, None)
    waited_s = {"data": 0.125, "checkpoint": 0.125}
    return step_metrics(training, TrainPosition(7, 7000), RESULT, 1e-3, 3e6, waited_s)


def test_a_step_is_the_sum_of_its_phases() -> None:
    line = measured(None)
    assert (line.step, line.tokens_seen, line.step_s, line.tokens_per_s) == (7, 7000, 2.0, 500.0)
    assert line.step_s == line.data_s + line.forward_backward_s + line.optimizer_s + line.checkpoint_s


def test_mfu_is_of_all_ranks_and_unknown_without_a_peak() -> None:
    assert measured(None).mfu is None
    assert measured(1e10).mfu == pytest.approx(500 * 3e6 / 1e10)
    assert measured(1e10, ranks=4).mfu == pytest.approx(500 * 3e6 / 4e10)


def test_each_step_is_a_line(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    metrics = Metrics(tiny.attempt(tiny.prepare(tmp_path, run), run))
    for step in (1, 2, 3):
        metrics.add(replace(LINE, step=step))
    metrics.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["mfu"] is None
    assert set(lines[0]) == set(StepMetrics.__slots__)


@pytest.mark.parametrize("place", ["nothing", "another file", "a link", "a pipe"])
def test_deleted_metrics_go_on_in_another_file_with_an_alarm(tmp_path: Path, place: str) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    metrics, strange = Metrics(tiny.attempt(run_dir, run)), tmp_path / "strange"
    metrics.add(LINE)
    run_dir.metrics.unlink()
    match place:
        case "another file":
            run_dir.metrics.touch()
        case "a link":
            strange.touch()
            run_dir.metrics.symlink_to(strange)
        case "a pipe":
            os.mkfifo(run_dir.metrics)
    for step in (2, 3):
        metrics.add(replace(LINE, step=step))
    metrics.close()
    assert [json.loads(line)["step"] for line in run_dir.metrics.read_text().splitlines()] == [2, 3]
    alarms = [event for event in tiny.events(run_dir) if isinstance(event, AlarmRaised)]
    assert [(alarm.name, alarm.step) for alarm in alarms] == [("metrics_lost", 2)]
    assert not strange.exists() or not strange.read_text()


def test_without_its_folder_the_metrics_raise_nothing(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    metrics = Metrics(tiny.attempt(run_dir, run))
    run_dir.path.rename(tmp_path.with_name(f"{tmp_path.name}.moved"))
    metrics._reopen_lost(metrics._file or 0, 1)


def test_progress_is_throttled_and_its_last_is_reported(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    metrics = Metrics(tiny.attempt(run_dir, run))
    for step in range(1, 1001):
        metrics.add(replace(LINE, step=step))
    metrics.close()
    told = [event.step for event in tiny.events(run_dir) if isinstance(event, Progress)]
    assert told[0] == 1
    assert told[-1] == 1000
    assert len(told) < 500  # one per step would be 1000; how many fit depends on the machine


def test_a_rank_beside_the_first_writes_nothing(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    metrics = Metrics(replace(tiny.attempt(run_dir, run), rank=1))
    metrics.add(LINE)
    metrics.close()
    assert not run_dir.metrics.exists()
    assert tiny.events(run_dir) == []


def test_each_step_has_one_line_while_the_lead_changes(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    replicas = [Replica(number, 2, leads=number == 0) for number in range(2)]
    metrics = [Metrics(replace(tiny.attempt(run_dir, run), replica=replica)) for replica in replicas]
    for step in range(1, 4):
        for one in metrics:
            one.add(replace(LINE, step=step))
    # The leader is lost after it wrote step 4, which the other one repeats; then it leads again, without step 6.
    metrics[0].add(replace(LINE, step=4))
    replicas[0].leads, replicas[1].leads = False, True
    metrics[1].add(replace(LINE, step=4))
    metrics[1].add(replace(LINE, step=5))
    metrics[0].add(replace(LINE, step=5))
    metrics[0].add(replace(LINE, step=6))
    replicas[0].leads, replicas[1].leads = True, False
    metrics[0].add(replace(LINE, step=7))
    for one in metrics:
        one.close()
    assert [line["step"] for line in tiny.metrics(run_dir)] == list(range(1, 8))


def test_a_leader_that_is_lost_before_its_line_writes_it_when_it_leads_again(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    leader, other = Replica(0, 2, leads=True), Replica(1, 2, leads=False)
    lost, kept = (Metrics(replace(tiny.attempt(run_dir, run), replica=one)) for one in (leader, other))
    for one in (lost, kept):
        one.add(replace(LINE, step=1))
    kept.add(replace(LINE, step=2))  # the leader took the step, too, and was killed before its line
    again = Metrics(replace(tiny.attempt(run_dir, run), replica=leader))
    again.take_unwritten(json.loads(json.dumps(kept.show_unwritten())))
    again.add(replace(LINE, step=3))
    again.close()
    assert [line["step"] for line in tiny.metrics(run_dir)] == [1, 2, 3]


def test_a_step_that_the_others_repeat_has_their_line_and_not_that_of_the_lost_leader(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    replicas = (Replica(0, 2, leads=True), Replica(1, 2, leads=False))
    lost, kept = (Metrics(replace(tiny.attempt(run_dir, run), replica=one)) for one in replicas)
    for step in (1, 2, 3):
        lost.add(replace(LINE, step=step), QuorumMetrics(2, 8))
    kept.add(replace(LINE, step=1), QuorumMetrics(2, 8))
    kept.add(replace(LINE, step=2), QuorumMetrics(2, 8))
    replicas[1].leads = True
    for step in (3, 4):
        kept.add(replace(LINE, step=step), QuorumMetrics(1, 4))
    kept.close()
    lines = [(line["step"], line["replicas"], line["sequences"]) for line in tiny.metrics(run_dir)]
    assert lines == [(1, 2, 8), (2, 2, 8), (3, 1, 4), (4, 1, 4)]


def test_a_resumed_attempt_drops_the_steps_it_takes_again(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path, run)
    first = Metrics(tiny.attempt(run_dir, run))
    for step in range(1, 8):
        first.add(replace(LINE, step=step))
    first.close()
    second = Metrics(tiny.attempt(run_dir, run, resume_step=5, number=2))
    second.add(replace(LINE, step=6, loss=9.0))
    second.close()
    assert [(line["step"], line["loss"]) for line in tiny.metrics(run_dir)][4:] == [(5, 2.5), (6, 9.0)]


@given(steps=st.lists(st.integers(1, 40), max_size=40), step=st.integers(0, 40), torn=st.integers(0, 12))
def test_only_whole_lines_up_to_the_step_are_kept(steps: list[int], step: int, torn: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        whole = "".join(json.dumps({"step": number}) + "\n" for number in steps)
        path.write_text(whole + '{"step": 3, "'[:torn])
        drop_after(path, step)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [s for s in steps if s <= step]


def test_a_run_without_metrics_has_nothing_to_drop(tmp_path: Path) -> None:
    drop_after(tmp_path / "metrics.jsonl", 3)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_metrics_that_are_a_link_or_a_pipe_or_a_folder_are_refused_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text('{"step": 9}\n')
    (tmp_path / "link").symlink_to(kept)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(UserError, match=r"symbolic link|named pipe|Is a directory"):
            drop_after(tmp_path / name, 5)
    assert kept.read_text() == '{"step": 9}\n'


def test_a_step_that_no_code_can_use_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 1e999}\n{"step": Infinity}\n' + "[" * 100_000 + "\n")
    drop_after(path, 5)
    assert path.read_text() == '{"step": 1}\n'
