from __future__ import annotations

import os
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir, write_atomic


def test_every_name_lies_inside_and_no_two_are_the_same(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    named = [getattr(run_dir, name) for name in dir(RunDir) if isinstance(getattr(RunDir, name), property)]
    named += [run_dir.checkpoint(20), run_dir.attempt(3), run_dir.launch(3, "trainer"), run_dir.log(3, "trainer")]
    named += [run_dir.stop_request(3)]
    assert all(path.is_relative_to(run_dir.path) for path in named)
    assert len(set(named)) == len(named)
    assert not run_dir.path.exists()


def test_names_that_other_programs_depend_on(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert run_dir.log(3, "trainer") == tmp_path / "attempts" / "003" / "trainer.log"
    assert run_dir.checkpoint(40) == tmp_path / "checkpoints" / "step_40"


def test_a_path_is_told_as_short_as_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path / "runs" / "a")
    monkeypatch.chdir(tmp_path)
    assert run_dir.relative(run_dir.config) == "runs/a/config.toml"
    assert run_dir.relative(Path("/elsewhere")) == "/elsewhere"


def test_an_atomic_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "one")
    write_atomic(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_that_fails_keeps_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "one")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half \udc80")
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["file"]
