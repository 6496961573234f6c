"""A kind of training that no module of the trainer knows: it trains, is killed, and goes on."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from prime_train import spec
from prime_train.checkpoints import layout, removal
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, LaunchAsked, Measured, Progress, Record, TrainerFinished, read
from prime_train.spec import RunSpec
from prime_train.supervise.core.fold import fold_all
from prime_train.views.run.status import Status
from prime_train.views.run.status_document import numbers, status_document
from tests import fork_server
from tests.system.trainer.test_resume import contents, differences
from tests.unit.trainer import tiny
from tests.unit.trainer.toy_work import HALF

REPOSITORY = Path(__file__).parents[3]


def copy_run(max_steps: int) -> RunSpec:
    run = tiny.run_spec(Path("none"))
    return replace(
        run,
        run=replace(run.run, max_steps=max_steps),
        batch=spec.Batch(micro_batch=8, global_batch=16),
        schedule=spec.Schedule(kind="constant", warmup_steps=2),
        optim=spec.Optim(lr=1e-2),
        checkpoint=spec.Checkpoint(interval_steps=20),
    )


def start(run_dir: RunDir, number: int, resume_step: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            fork_server.interpreter(),
            "-m",
            "tests.unit.trainer.toy_work",
            str(run_dir.path),
            str(number),
            str(resume_step),
        ],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(run_dir: RunDir, number: int = 1, resume_step: int = 0) -> None:
    process = start(run_dir, number, resume_step)
    try:
        output, _ = process.communicate(timeout=tiny.DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0, output


def has_saved(run_dir: RunDir, step: int) -> bool:
    return any(isinstance(event, CheckpointSaved) and event.step == step for event in tiny.events(run_dir))


def test_a_toy_trains_is_killed_and_ends_with_the_weights_of_a_run_that_is_not(tmp_path: Path) -> None:
    straight = tiny.prepare(tmp_path / "straight", copy_run(40))
    finish(straight)

    killed = tiny.prepare(tmp_path / "killed", copy_run(10**6))  # without an end the kill cannot come too late
    process = start(killed, 1, 0)
    tiny.until(lambda: has_saved(killed, 20))
    tiny.kill(process)
    assert not any(isinstance(event, TrainerFinished) for event in tiny.events(killed))
    tiny.prepare(killed.path, copy_run(40))
    for saved in layout.scan(killed.checkpoints):
        if saved.step != 20:  # what was saved before the kill arrived
            removal.remove(saved.path)
    finish(killed, number=2, resume_step=20)

    one, other = (contents(each.checkpoint(40), tmp_path / "contents.pt") for each in (straight, killed))
    assert differences(one, other) == []
    lines, resumed_lines = tiny.metrics(straight), tiny.metrics(killed)
    assert [line["loss"] for line in lines] == [line["loss"] for line in resumed_lines]
    assert lines[-1]["loss"] < 0.98 * lines[0]["loss"]


def test_a_toy_is_evaluated_by_its_own_evaluation_and_shown_with_its_own_unit(tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, copy_run(10))
    finish(run_dir)
    measured = [event for event in tiny.events(run_dir) if isinstance(event, Measured)]
    assert [(event.name, event.step) for event in measured] == [("copies", 5), ("copies", 10)]
    finished = tiny.events(run_dir)[-1]
    assert isinstance(finished, TrainerFinished)
    assert finished.loss == measured[-1].value
    (last,) = [event for event in tiny.events(run_dir) if isinstance(event, Progress)][-1:]
    assert last.unit == "digits"
    # What the supervisor writes when it starts an attempt.
    asked = Record(0.0, "supervisor", 0, LaunchAsked(1, 0))
    state = fold_all([asked, *read(run_dir.events)])
    document = status_document(Status(run_dir.path, state, True, (), None, 0.0))
    assert numbers(document)[-1].endswith(" digits/s")


def test_evaluations_are_made_by_the_settings_in_force(tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, copy_run(10))
    changed, config = {"batch.micro_batch": 4}, {"batch.micro_batch": 8}
    write_plan(run_dir.settings, ChangePlan(version=1, values=changed, before=config, config=config))
    finish(run_dir)
    rows = [(event.step, event.count // HALF) for event in tiny.events(run_dir) if isinstance(event, Measured)]
    assert rows == [(5, 8 * 4), (10, 8 * 4)]
