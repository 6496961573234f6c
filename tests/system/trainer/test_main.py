"""The trainer as a process: how it ends, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.process_id import identify
from prime_train.core.rundir import RunDir
from prime_train.events import (
    CheckpointSaved,
    Evaluated,
    Phase,
    Progress,
    Sampled,
    TrainerFailed,
    TrainerFinished,
    TrainerStopped,
)
from prime_train.trainer.attempt import SUPERVISOR_ENV
from tests.unit.trainer import tiny

ENDLESS = spec.Run(name="tiny", max_steps=10**6, seed=7)


def failures(run_dir: RunDir) -> list[TrainerFailed]:
    return [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]


def has_trained(run_dir: RunDir) -> bool:
    return any(isinstance(event, Progress) for event in tiny.events(run_dir))


def test_a_run_to_its_end(texts: Path, tmp_path: Path) -> None:
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=5, final="hf"))
    run_dir = tiny.prepare(tmp_path, run)
    code, output = tiny.train(run_dir)
    assert code == 0, output
    told = tiny.events(run_dir)
    phases = [event.name for event in told if isinstance(event, Phase)]
    assert phases[0] == "setup"
    assert [name for name in phases if name not in ("setup", "train")] == [
        *("tokenizer", "data", "evaluate"),
        *("checkpoint", "evaluate", "checkpoint", "export"),
    ]
    assert [event.step for event in told if isinstance(event, Evaluated)] == [5, 10]
    assert [event.step for event in told if isinstance(event, Sampled)] == [5, 10]
    assert [event.step for event in told if isinstance(event, CheckpointSaved)] == [5, 10]
    last_progress = [event for event in told if isinstance(event, Progress)][-1]
    assert last_progress.step == 10
    last_loss = [event.loss for event in told if isinstance(event, Evaluated)][-1]
    assert told[-1] == TrainerFinished(1, 10, last_loss, str(run_dir.final))
    lines = tiny.metrics(run_dir)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert lines[-1]["tokens_seen"] == sum(line["tokens"] for line in lines) == last_progress.tokens_seen
    assert lines[0]["lr"] == pytest.approx(1e-3 / 3)
    assert json.loads((run_dir.final / "config.json").read_text())["num_hidden_layers"] == 2
    assert (run_dir.final / "tokenizer.json").is_file()


def test_an_attempt_at_the_last_step_only_finishes(texts: Path, tmp_path: Path) -> None:
    """As after a kill between the last checkpoint and the end."""
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts))
    assert tiny.train(run_dir)[0] == 0
    before = run_dir.metrics.read_bytes()
    assert tiny.train(run_dir, number=2, resume_step=10)[0] == 0
    assert run_dir.metrics.read_bytes() == before
    finished = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFinished)]
    assert [event.step for event in finished] == [10, 10]
    assert finished[0].loss == finished[1].loss


@pytest.mark.parametrize(("by", "processes"), [("file", 1), ("SIGTERM", 1), ("file", 2)])
def test_a_stop_leaves_a_checkpoint(texts: Path, tmp_path: Path, by: str, processes: int) -> None:
    run = tiny.run_spec(
        texts,
        run=ENDLESS,
        checkpoint=spec.Checkpoint(interval_steps=None),
        parallel=spec.Parallel(processes=processes),
        batch=spec.Batch(micro_batch=4 // processes, global_batch=4),
    )
    run_dir = tiny.prepare(tmp_path, run)
    process = tiny.start(run_dir, processes=processes)
    tiny.until(lambda: has_trained(run_dir))
    if by == "file":
        run_dir.stop_request(1).parent.mkdir(parents=True)
        run_dir.stop_request(1).touch()
    else:
        process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=tiny.DEADLINE_S)
    assert process.returncode == 0, output
    stopped = tiny.events(run_dir)[-1]
    assert isinstance(stopped, TrainerStopped)
    newest = layout.newest_complete(run_dir.checkpoints)
    assert newest is not None
    assert newest.step == stopped.step == tiny.metrics(run_dir)[-1]["step"]
    assert not any(isinstance(event, TrainerFinished) for event in tiny.events(run_dir))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stop_before_the_first_step_ends_without_one(texts: Path, tmp_path: Path, processes: int) -> None:
    run = tiny.run_spec(
        texts,
        run=ENDLESS,
        parallel=spec.Parallel(processes=processes),
        batch=spec.Batch(micro_batch=4 // processes, global_batch=4),
    )
    run_dir = tiny.prepare(tmp_path, run)
    run_dir.stop_request(1).parent.mkdir(parents=True)
    run_dir.stop_request(1).touch()
    code, output = tiny.train(run_dir, processes=processes)
    assert code == 0, output
    assert tiny.events(run_dir)[-1] == TrainerStopped(1, 0)
    assert not run_dir.metrics.exists()
    assert not run_dir.checkpoints.exists()
    assert "Traceback" not in output


def test_a_stop_in_the_middle_of_the_set_up_of_a_resumed_run(tmp_path: Path) -> None:
    texts = tiny.write_texts(tmp_path / "texts")
    run_dir = tiny.prepare(tmp_path / "run", tiny.run_spec(texts))
    assert tiny.train(run_dir)[0] == 0
    checkpoints = sorted(run_dir.checkpoints.iterdir())
    (texts / "many.jsonl").write_text('{"text": "one two three four"}\n' * 2_000_000)  # the set-up takes a while
    process = tiny.start(run_dir, number=2, resume_step=5)
    tiny.until(lambda: Phase(2, "tokenizer") in tiny.events(run_dir))
    run_dir.stop_request(2).parent.mkdir(parents=True)
    run_dir.stop_request(2).touch()
    output, _ = process.communicate(timeout=tiny.DEADLINE_S)
    assert process.returncode == 0, output
    assert tiny.events(run_dir)[-1] == TrainerStopped(2, 5)
    assert sorted(run_dir.checkpoints.iterdir()) == checkpoints


def test_the_trainer_ends_with_its_supervisor(texts: Path, tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts, run=ENDLESS))
    named = {SUPERVISOR_ENV: str(identify(supervisor.pid))}
    trainer = tiny.start(run_dir, environment=named)
    tiny.until(lambda: has_trained(run_dir))
    supervisor.kill()
    supervisor.communicate()
    output, _ = trainer.communicate(timeout=tiny.DEADLINE_S)
    assert trainer.returncode == 1
    assert "the supervisor is gone" in output


def test_a_training_that_diverges_ends_for_good(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts, optim=spec.Optim(lr=1e30, clip_norm=None)))
    assert tiny.train(run_dir)[0] == 5
    (failed,) = failures(run_dir)
    assert failed.cause_class == "config"
    assert "gave a loss of" in failed.what
    assert "optim.lr" in failed.fix
    assert all(line["loss"] < 1e6 for line in tiny.metrics(run_dir))


def test_bad_input_ends_with_five_and_nothing_half_done(texts: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    run = tiny.run_spec(texts)
    bad = {
        "no text": replace(run, data=replace(run.data, sources=(spec.Source(kind="files", path=str(empty)),))),
        "no model": replace(run, model=spec.Model(path=str(tmp_path / "nowhere"))),
    }
    for name, broken in bad.items():
        run_dir = tiny.prepare(tmp_path / name, broken)
        code, output = tiny.train(run_dir)
        assert code == 5, output
        (failed,) = failures(run_dir)
        assert failed.cause_class == "config"
        assert all((failed.what, failed.where, failed.why, failed.fix))
        assert not run_dir.checkpoints.exists()
        assert "Traceback" not in output


def test_an_error_of_ours_ends_with_one_and_a_traceback(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts))
    run_dir.checkpoints.write_text("a file where a folder should be")
    code, output = tiny.train(run_dir)
    assert code == 1
    assert "Traceback" in output
    (failed,) = failures(run_dir)
    assert failed.cause_class == "unknown"
    assert failed.what.startswith("NotADirectoryError")
    assert failed.where.startswith("checkpoints/removal.py")


def test_metrics_that_are_a_folder_are_refused(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts))
    run_dir.metrics.mkdir()
    code, output = tiny.train(run_dir)
    assert code == 5
    assert "Traceback" not in output
    (failed,) = failures(run_dir)
    assert failed.where == str(run_dir.metrics)
    assert all((failed.what, failed.why, failed.fix))


def test_a_run_that_is_not_one_is_a_config_error(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.resolved.write_text('{"run": {"name": "x"}}')
    code, _ = tiny.train(run_dir, python=sys.executable)  # which does not import torch
    assert code == 5
    (failed,) = failures(run_dir)
    assert failed.cause_class == "config"
    assert failed.where == str(run_dir.resolved)


def test_a_missing_run_directory_is_wrong_usage(tmp_path: Path) -> None:
    code, output = tiny.train(RunDir(tmp_path / "none"), python=sys.executable)
    assert code == 2
    assert "resolved.json is missing" in output
    assert not (tmp_path / "none").exists()


def test_sigusr1_shows_where_it_stands(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts, run=ENDLESS))
    process = tiny.start(run_dir)
    tiny.until(lambda: has_trained(run_dir))
    os.kill(process.pid, signal.SIGUSR1)
    step = tiny.metrics(run_dir)[-1]["step"]
    tiny.until(lambda: tiny.metrics(run_dir)[-1]["step"] > step)  # it goes on
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=tiny.DEADLINE_S)
    assert process.returncode == 0
    assert "most recent call first" in output
    assert "pretrain.py" in output
