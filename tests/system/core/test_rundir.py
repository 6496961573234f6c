from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from prime_train.core import rundir
from prime_train.core.rundir import RunDir, open_private, remove_temporary, write_atomic


def test_every_name_lies_inside_and_no_two_are_the_same(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    named = [getattr(run_dir, name) for name, value in vars(RunDir).items() if isinstance(value, rundir._Below)]
    assert len(named) > 10
    named += [run_dir.checkpoint(20), run_dir.attempt(3), run_dir.launch(3, "trainer"), run_dir.log(3, "trainer")]
    named += [run_dir.stop_request(3)]
    assert all(path.is_relative_to(run_dir.path) for path in named)
    assert len(set(named)) == len(named)
    assert not run_dir.path.exists()


def test_names_that_other_programs_depend_on(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert run_dir.log(3, "trainer") == tmp_path / "attempts" / "003" / "trainer.log"
    assert run_dir.checkpoint(40) == tmp_path / "checkpoints" / "step_40"


def test_a_path_is_reported_as_short_as_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("is_private", [True, False])
def test_an_atomic_write_follows_no_link_at_its_temporary_name(tmp_path: Path, is_private: bool) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("of the user")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(theirs)
    write_atomic(tmp_path / "file", b"two", is_private=is_private)
    assert theirs.read_text() == "of the user"
    assert (tmp_path / "file").read_bytes() == b"two"
    assert sorted(os.listdir(tmp_path)) == ["file", "theirs"]


def test_a_write_that_fails_keeps_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "one")
    with pytest.raises(TypeError):
        write_atomic(path, ["no", "text"])  # type: ignore[arg-type]
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["file"]


def test_bytes_of_a_path_that_is_not_utf_8_are_written_as_escapes(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "a/\udc80")
    assert (tmp_path / "file").read_text() == "a/\\udc80"


def test_temporary_files_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    run_dir, others = RunDir(tmp_path / "run"), tmp_path / "others"
    left = f".COMPLETE.json.{ended.pid}.tmp"
    for folder in (run_dir.path, run_dir.plots, run_dir.checkpoint(5), run_dir.attempt(1), others):
        folder.mkdir(parents=True)
        (folder / left).touch()
    (run_dir.checkpoints / "step_9").symlink_to(others)
    kept = [run_dir.path / f".report.md.{os.getpid()}.tmp", run_dir.path / f"notes.{ended.pid}.tmp", run_dir.config]
    for path in kept:
        path.touch()
    remove_temporary(run_dir)
    assert sorted(path for path in run_dir.path.rglob("*") if path.is_file()) == sorted(kept)
    assert (others / left).exists()


def test_a_temporary_file_of_a_zombie_is_removed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.checkpoint(5).mkdir(parents=True)
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie until the block ends
        left = run_dir.checkpoint(5) / f".IN_USE.{ended.pid}.{ended.pid}.tmp"
        left.touch()
        remove_temporary(run_dir)
    assert not left.exists()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_in_the_place_of_a_log_gets_another_name(tmp_path: Path, kind: str) -> None:
    log, other = tmp_path / "gpu.log", tmp_path / "other.txt"
    other.write_text("of the user")
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "link":
        log.symlink_to(other)
    else:
        log.mkdir()
    with open(log, "ab", opener=open_private) as file:
        file.write(b"line\n")
    assert log.read_text() == "line\n"
    assert other.read_text() == "of the user"
    assert os.path.lexists(tmp_path / "gpu.log.set_aside")
