"""The last event of a command: what its trainer reports itself counts for more than a line of its log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.config import run_toml
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointUnreadable, Event, Phase, TrainerFailed, TrainerFinished, read
from prime_train.programs.command.derive import derive
from prime_train.programs.command.observer import CommandObserver, live_folder
from prime_train.programs.command.program import PROGRAM
from prime_train.registry.trainers import trainer_profile
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.command import CheckpointSource, CommandSpec
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.written_saves import SAVES

SUMMARY = "{'train_runtime': '5.2', 'train_samples_per_second': '5.3', 'train_steps_per_second': '2.6', 'train_loss': '3', 'epoch': '1'}\n"  # noqa: E501
REACHED = "`Trainer.fit` stopped: `max_steps=48` reached.\n"


def observe(
    cwd: Path,
    trainer: str,
    log: str,
    *lines: dict[str, object],
    resume_step: int = 0,
    folder: str = "",
    returncode: int = 0,
) -> list[Event]:
    """The events of an attempt with this log and these lines of prime_train.live."""
    run_dir = RunDir(cwd / "runs" / "a")
    live_folder(run_dir, 1).mkdir(parents=True)
    run = run_toml.read(derive(["python", "train.py"], cwd).text, "run.toml").run
    assert run is not None
    assert run.command is not None
    places = replace(run.command.checkpoints, dir=folder)
    known = replace(run, command=replace(run.command, cwd=str(cwd), trainer=trainer, checkpoints=places))
    observer = CommandObserver(known, run_dir, 1, resume_step)
    observer.begin()
    run_dir.log(1, "trainer").write_text(log)
    reported = "".join(json.dumps({"t": 1.0, **line}) + "\n" for line in lines)
    (live_folder(run_dir, 1) / "rank0-1.jsonl").write_text(reported)
    observer.end(returncode=returncode)
    return [record.event for record in read(run_dir.events)]


@pytest.mark.parametrize(("named", "learned"), [("", "printed"), ("named", "named")])
def test_the_folder_of_the_checkpoints_is_learned_where_nothing_names_it(
    named: str, learned: str, tmp_path: Path
) -> None:
    """The disk watch and the next attempt have it from there."""
    line = "saving checkpoint at iteration    1000 to printed in torch_dist format\n"
    saves.write_whole(tmp_path / learned, SAVES["megatron-lm"](1000))
    observe(tmp_path, "megatron", line, folder=named)
    run_dir = RunDir(tmp_path / "runs" / "a")
    command = CommandSpec(
        argv=("python", "pretrain.py"),
        cwd=str(tmp_path),
        trainer="megatron",
        checkpoints=CheckpointSource(dir=named),
    )
    run = RunSpec(run=Run(name="a", kind="command", max_steps=2000), data=Data(sources=()), command=command)
    places = PROGRAM.places(run, run_dir)
    assert (places.checkpoints, places.outputs) == ((tmp_path / learned,), ())
    assert [one.step for one in PROGRAM.checkpoints(run, run_dir) if one.complete] == [1000]


def test_a_summary_after_an_early_stop_is_no_finish(tmp_path: Path) -> None:
    *_, last = observe(tmp_path, "hf", SUMMARY, {"step": 0, "total": 48}, {"step": 25})
    assert isinstance(last, TrainerFailed)
    assert last.what == "it exited with 0 at step 25 of 48, and did not finish"


@pytest.mark.parametrize("step", [25, 48])
def test_a_reported_end_is_a_finish(step: int, tmp_path: Path) -> None:
    *_, last = observe(
        tmp_path, "hf", SUMMARY, {"step": 0, "total": 48}, {"step": step}, {"step": step, "finished": True}
    )
    assert isinstance(last, TrainerFinished)


def test_a_last_line_is_a_finish_where_nothing_else_reports(tmp_path: Path) -> None:
    *_, last = observe(tmp_path, "lightning", REACHED)
    assert isinstance(last, TrainerFinished)


def test_the_time_after_the_last_step_is_a_phase_without_steps(tmp_path: Path) -> None:
    events = observe(tmp_path, "hf", "", {"step": 0, "total": 48}, {"step": 48}, {"step": 48, "phase": "train"})
    phases = [event.name for event in events if isinstance(event, Phase)]
    assert phases == ["train", "export"]


@pytest.mark.parametrize(("step", "is_reported"), [(21, True), (18, False)])
def test_a_file_of_the_checkpoint_that_cannot_be_read_is_reported(
    step: int, *, is_reported: bool, tmp_path: Path
) -> None:
    (line,) = (line for line in trainer_profile("orbax").lines if line.kind == "unreadable")
    for saved in (18, 21):
        (tmp_path / "out" / str(saved)).mkdir(parents=True)
        (tmp_path / "out" / str(saved) / "_CHECKPOINT_METADATA").write_text("{}")
    log = line.examples[0].replace("/ckpt/21", str(tmp_path / "out" / "21"))
    events = observe(tmp_path, "orbax", f"{log}\n", resume_step=step, folder="out", returncode=1)
    assert [event.step for event in events if isinstance(event, CheckpointUnreadable)] == [21] * is_reported
