"""A scheduler that prime-train does not know is added by one folder in away/ and its name in `job.SCHEDULERS`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import prime_train
from prime_train.core import installation
from tests.unit.cli.commands import clean_environment

_NAMES = 'SCHEDULERS = ("sky", "slurm")'
_MAIN = "from prime_train.cli.entry import main; main()"
_RUN = "from pathlib import Path; from prime_train.away.spool import SpoolRun; run = SpoolRun(Path('runs/far.spool'));"
SUBMIT = f"{_RUN} run.submit()"
FOLLOW = f"{_RUN} import sys; from prime_train.cli.jobs import follow; sys.exit(follow(run, lambda _: None))"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the folder and the word that the scheduler needs."""
    copy = tmp_path_factory.mktemp("src")
    shutil.copytree(Path(prime_train.__file__).parent, copy / "prime_train", ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copytree(installation.shipped(), copy / "prime_train" / "_shipped" / "registry")
    shutil.copytree(Path(__file__).with_name("spool"), copy / "prime_train" / "away" / "spool")
    module = copy / "prime_train" / "away" / "job.py"
    text = module.read_text(encoding="utf-8")
    assert text.count(_NAMES) == 1
    module.write_text(text.replace(_NAMES, 'SCHEDULERS = ("sky", "slurm", "spool")'), encoding="utf-8")
    return copy


class Here:
    """A folder from which prime-train with the scheduler is called. `spool` is the file of its job."""

    def __init__(self, package: Path, folder: Path) -> None:
        self.folder = folder
        self._environment = clean_environment() | {"PYTHONPATH": str(package)}
        (folder / "runs").mkdir()
        self.spool = folder / "runs" / "far.spool"

    def execute(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )

    def prime_train(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = self.execute(_MAIN, *arguments)
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture
def here(package: Path, tmp_path: Path) -> Here:
    found = Here(package, tmp_path)
    assert found.execute(SUBMIT).returncode == 0
    return found


def test_status_shows_its_job(here: Here) -> None:
    document = json.loads(here.prime_train("status", "far", "--json").stdout)
    assert document == {"version": 1, "kind": "spool", "run": "far", "state": "waits"}
    assert "waits" in here.prime_train("status", "far").stdout
    assert "far is a managed job" in here.prime_train("status").stderr


def test_runs_lists_it_and_asks_only_on_request(here: Here) -> None:
    (row,) = json.loads(here.prime_train("runs", "--json").stdout)["runs"]
    assert (row["name"], row["state"], row["usd"]) == ("far", "away", None)
    assert "--ask" in row["reason"]
    for word, state in (("waits", "queued"), ("runs", "running"), ("done", "finished"), ("failed", "failed")):
        here.spool.write_text(f"{word}\n", encoding="utf-8")
        (row,) = json.loads(here.prime_train("runs", "--json", "--ask").stdout)["runs"]
        assert row["state"] == state
        assert row["reason"].startswith(f"it is {word}, as of 20")


def test_logs_are_those_of_its_job(here: Here) -> None:
    here.spool.write_text("done\none\ntwo\nthree\n", encoding="utf-8")
    assert here.prime_train("logs", "far", "-n", "2", "--follow").stdout == "two\nthree\n"
    document = json.loads(here.prime_train("logs", "far", "-n", "2", "--json").stdout)
    assert (document["run"], document["attempt"]) == ("far", None)
    assert document["sources"] == [{"source": "job", "lines": ["two", "three"]}]


def test_stop_cancels_its_job(here: Here) -> None:
    assert here.prime_train("stop", "far").stdout == "far is cancelled\n"
    assert here.spool.read_text(encoding="utf-8") == "cancelled\n"


def test_a_live_job_is_not_submitted_twice(here: Here) -> None:
    assert "is in the spool" in here.execute(SUBMIT).stderr
    here.spool.write_text("failed\n", encoding="utf-8")
    assert here.execute(SUBMIT).returncode == 0


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 5), ("cancelled", 75)])
def test_the_end_of_its_job_is_the_end_of_the_command(here: Here, state: str, code: int) -> None:
    here.spool.write_text(f"{state}\n", encoding="utf-8")
    followed = here.execute(FOLLOW)
    assert followed.returncode == code
    assert f"far: {state}" in followed.stderr
