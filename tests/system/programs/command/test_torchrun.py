"""A plain script of two ranks under torchrun, without any change: killed, restarted, stopped, ended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.system.programs.command.commands import TORCHRUN, Supervised, kill_rank, list_marked, read_json
from tests.unit.cli.commands import prime_train

SCRIPT = Path(__file__).with_name("ddp.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SCRIPT, tmp_path / "ddp.py")
    return tmp_path


def test_a_killed_rank_is_the_cause_and_the_run_ends_without_a_claimed_step(folder: Path) -> None:
    words = ("--", TORCHRUN, "--nproc-per-node", "2", "ddp.py", "40", "0.1", "0")
    supervised = Supervised(folder, *words)
    try:
        supervised.await_text("step 3 ")
        kill_rank(folder, 1)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 0, err
    assert "progress: not known" in err
    assert "exit 0; whether it finished is not known" in err
    assert "attempt 2 starts; from which step is not known" in err
    name = supervised.run_dir.path.name
    status = read_json(folder, "status", name)
    assert (status["state"], status["step"], status["restarts"]) == ("finished", 0, 1)
    assert list_marked(supervised.run_dir) == []
    assert "step 40 " in prime_train("logs", name, cwd=folder).stdout
    report = prime_train("report", name, cwd=folder)
    assert report.returncode == 0, report.stderr
    text = Path(report.stdout.strip()).read_text()
    assert "SIGKILL" in text
    assert "from a step that is not known." in text
    diagnosed = prime_train("diagnose", name, cwd=folder)
    assert "rank 1" in diagnosed.stdout + diagnosed.stderr

    again = prime_train("run", "--no-validate", *words, cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "is finished" in again.stderr


def test_a_stop_gives_the_workers_their_whole_grace(folder: Path) -> None:
    """torchrun itself would kill them 30 s after its own SIGTERM."""
    supervised = Supervised(folder, "--", TORCHRUN, "--nproc-per-node", "2", "ddp.py", "4000", "0.1", "33")
    try:
        supervised.await_text("step 3 ")
        stopped = prime_train("stop", supervised.run_dir.path.name, cwd=folder)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert stopped.returncode == 0, stopped.stderr
    assert code == 75, err
    assert (folder / "saved0").exists()
    assert (folder / "saved1").exists()
    assert "forcefully exiting" not in supervised.run_dir.log(1, "trainer").read_text()
    assert list_marked(supervised.run_dir) == []


def test_a_dry_run_shows_what_is_known_and_writes_nothing(folder: Path) -> None:
    shown = read_json(folder, "run", "--dry-run", "--", TORCHRUN, "--nproc-per-node", "2", "ddp.py", "4", "0", "0")
    known = {line["label"]: line["text"] for line in shown["program"]}
    assert known["trainer"] == "a trainer without a profile"
    assert known["progress"].startswith("not known")
    assert known["stop"].startswith("SIGTERM to the training processes")
    assert shown["processes"][0]["argv"][-1] == "0"
    assert [path.name for path in folder.iterdir()] == ["ddp.py"]


def test_a_dry_run_shows_the_config_that_the_command_stands_for(folder: Path) -> None:
    words = ("--", TORCHRUN, "--nproc-per-node", "2", "ddp.py")
    shown = prime_train("run", "--dry-run", "--no-validate", *words, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    config = shown.stderr[shown.stderr.index("[run]") :]
    (folder / "run.toml").write_text(config)
    linted = prime_train("lint", "run.toml", cwd=folder)
    assert linted.returncode == 0, linted.stdout
