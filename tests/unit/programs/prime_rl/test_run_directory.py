from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, EventLog, LaunchAsked, RunOpened
from prime_train.programs.prime_rl import run_directory
from prime_train.programs.prime_rl.run_directory import open_run, run_id
from prime_train.programs.prime_rl.settings import prepare_run
from prime_train.spec import RunSpec, from_json
from prime_train.spec.answers import prime_rl_of, replace_parts
from tests.fakes.prime_rl_launcher.standin import metadata
from tests.unit.programs.prime_rl.test_program import HEAD, MAY

LONG_AGO_S = 3600.0


def a_run(folder: Path, text: str = HEAD) -> tuple[RunSpec, RunDir]:
    reading = detect.read(text, "rl.toml")
    assert reading.run is not None
    return prepare_run(reading.run, "words", folder), RunDir(folder / "runs" / "words")


def save(run: RunSpec, step: int, *, whole: bool = True) -> Path:
    folder = run_directory.find_folder(run) / "checkpoints" / f"step_{step}"
    for name in ("trainer/.metadata", *(("orchestrator/progress.pt",) if whole else ())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(metadata({}))
    return folder


def attempted(run_dir: RunDir) -> None:
    log = EventLog(run_dir.events, "supervisor")
    log.append(RunOpened("words", 1, 20, "0"))
    log.append(LaunchAsked(1, 0))
    log.append(AttemptEnded(1, 1, "failed", "unknown", "boom", "", "", "", 0))
    log.close()


def test_a_first_start_keeps_the_config_and_the_run(tmp_path: Path) -> None:
    run, run_dir = a_run(tmp_path)
    opened = open_run(HEAD, run, run_dir)
    assert (opened.fresh, opened.finished, opened.notes) == (True, False, ())
    assert run_dir.config.read_text() == HEAD
    assert from_json(run_dir.resolved.read_text()) == run
    assert open_run(HEAD, run, run_dir).run == run


def test_a_run_that_was_begun_without_us_is_gone_on_with(tmp_path: Path) -> None:
    run, run_dir = a_run(tmp_path)
    save(run, 10)
    opened = open_run(HEAD, run, run_dir)
    assert "checkpoints of an earlier start" in opened.notes[0]


def test_files_of_another_program_without_a_checkpoint_are_refused(tmp_path: Path) -> None:
    run, run_dir = a_run(tmp_path)
    save(run, 10, whole=False)
    with pytest.raises(UserError, match="no complete checkpoint") as raised:
        open_run(HEAD, run, run_dir)
    assert "mv " in raised.value.fix
    assert not run_dir.resolved.exists()
    attempted(run_dir)  # after an attempt of this run they are its own, and the plan sets them aside
    open_run(HEAD, run, run_dir)


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path: Path) -> None:
    run, run_dir = a_run(tmp_path)
    save(run, 10)
    log = run_directory.find_folder(run) / "logs" / "attempt_1" / "trainer.log"
    log.parent.mkdir(parents=True)
    log.write_text("Step 11\n")
    with pytest.raises(UserError, match="something wrote there"):
        open_run(HEAD, run, run_dir)
    os.utime(log, (time.time() - LONG_AGO_S,) * 2)
    open_run(HEAD, run, run_dir)


def test_a_run_keeps_its_folder(tmp_path: Path) -> None:
    run, run_dir = a_run(tmp_path)
    open_run(HEAD, run, run_dir)
    save(run, 10)
    assert run.prime_rl is not None
    moved = replace_parts(run, launch=prime_rl_of(run).launch._replace(output_dir=str(tmp_path / "elsewhere")))
    save(moved, 10)
    with pytest.raises(UserError, match=r"output_dir is .*elsewhere"):
        open_run(HEAD, moved, run_dir)


def test_a_step_that_is_asked_for_must_be_whole_and_newer_ones_are_kept_aside(tmp_path: Path) -> None:
    run, run_dir = a_run(tmp_path)
    for step in (10, 20):
        save(run, step)
    newest = save(run, 30, whole=False)
    with pytest.raises(UserError, match=r"step 30 cannot be resumed from: no orchestrator/progress\.pt"):
        open_run(HEAD, run, run_dir, 30)
    with pytest.raises(UserError, match="step 15 cannot be resumed from"):
        open_run(HEAD, run, run_dir, 15)
    open_run(HEAD, run, run_dir, 10)
    assert [checkpoint.step for checkpoint in run_directory.list_checkpoints(run)] == [10]
    assert sorted(path.name for path in newest.parent.iterdir()) == ["aside.step_20", "aside.step_30", "step_10"]
    assert (newest.parent / "aside.step_20" / "trainer" / ".metadata").exists()
    with pytest.raises(UserError, match="the run has checkpoints"):
        open_run(HEAD, run, run_dir, "never")


def test_parts_of_a_checkpoint_that_lie_apart_are_set_aside_together(tmp_path: Path) -> None:
    run, run_dir = a_run(tmp_path, MAY)
    for step in (10, 20):
        for name in (f"checkpoints/step_{step}/trainer/.metadata", f"run_default/checkpoints/step_{step}/progress.pt"):
            (run_directory.find_folder(run) / name).parent.mkdir(parents=True)
            (run_directory.find_folder(run) / name).write_bytes(metadata({}))
    open_run(MAY, run, run_dir, 10)
    assert not list(run_directory.find_folder(run).rglob("step_20"))
    assert len(list(run_directory.find_folder(run).rglob("aside.step_20"))) == 2


def test_the_step_that_the_config_asks_for_holds_for_the_first_start(tmp_path: Path) -> None:
    text = HEAD.replace("[model]", "[resume]\nstep = 10\n\n[model]")
    run, run_dir = a_run(tmp_path, text)
    for step in (10, 20):
        save(run, step)
    open_run(text, run, run_dir)
    assert [checkpoint.step for checkpoint in run_directory.list_checkpoints(run)] == [10]
    attempted(run_dir)
    save(run, 20)
    open_run(text, run, run_dir)
    assert [checkpoint.step for checkpoint in run_directory.list_checkpoints(run)] == [20, 10]


def test_a_run_has_one_id_for_ever(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert run_id(run_dir, {}, writes=False) == "(a fresh one)"
    first = run_id(run_dir, {}, writes=True)
    assert len(first) == 32
    assert run_id(run_dir, {"PRL_RUN_ID": "other"}, writes=True) == run_id(run_dir, {}, writes=False) == first
    given = tmp_path / "given"
    given.mkdir()
    assert run_id(RunDir(given), {"PRL_RUN_ID": "mine"}, writes=True) == "mine"
