"""`prime-train runs` as a process: its three forms, and what it says about bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from prime_train.away.slurm.record import SlurmJob, write_job
from tests.unit.cli.commands import prime_train
from tests.unit.views.compare.made import write_compared
from tests.unit.views.written_runs import BEGAN_S, FIRST_ATTEMPT, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("table")
    for place, lr in enumerate((1e-3, 2e-3, 3e-4)):
        write_compared(made / "runs", f"run{place}", lr=lr, at_s=100.0 * place)
    (made / "runs" / "run1" / "resolved.json").write_text("{")
    return made


def test_a_table_of_the_runs_with_what_changed(folder: Path) -> None:
    done = prime_train("runs", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = done.stdout.splitlines()
    assert header.split()[:5] == ["RUN", "KIND", "MODEL", "CHANGED", "STATE"]
    assert [line.split()[0] for line in lines] == ["run0", "run1", "run2"]
    assert "optim.lr" in lines[2]
    assert "its resolved.json cannot be read" in lines[1]
    assert "optim.lr 0.001 -> 0.0003" in prime_train("runs", "--wide", cwd=folder).stdout


def test_conditions_and_order(folder: Path) -> None:
    done = prime_train("runs", "--where", "optim.lr>1e-4", "--sort", "-optim.lr", "--json", cwd=folder)
    assert [row["name"] for row in json.loads(done.stdout)["runs"]] == ["run0", "run2"]
    nothing = prime_train("runs", "--where", "state=failed", cwd=folder)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "none of 3 runs fulfils state=failed" in nothing.stderr


def test_csv_of_the_folder_itself(folder: Path) -> None:
    done = prime_train("runs", str(folder / "runs"), "--csv", cwd=Path("/"))
    assert [row["name"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["run0", "run1", "run2"]


@pytest.mark.parametrize(
    ("arguments", "where", "what"),
    [
        (("nowhere",), "nowhere", "there is no such folder"),
        (("runs/run0/events",), "runs/run0/events", "no run is in it"),
        (("--where", "stat=1"), "stat=1", "stat is no column"),
        (("--sort", "losss"), "losss", "losss is no column"),
        (("--json", "--csv"), "prime-train runs", "--json and --csv are given"),
    ],
)
def test_bad_input_has_four_parts(folder: Path, arguments: tuple[str, ...], where: str, what: str) -> None:
    done = prime_train("runs", *arguments, cwd=folder)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {where}")
    assert f"what  {what}" in done.stderr
    assert all(f"  {part}" in done.stderr for part in ("why", "fix"))


def test_a_run_on_slurm_is_not_called_dead_without_a_question(tmp_path: Path) -> None:
    """It may wait to be started again. A scheduler that is not there is named, and hides no row."""
    for name in ("first", "second"):
        run_dir = write_run(tmp_path / "runs" / name, FIRST_ATTEMPT)
        write_job(run_dir, SlurmJob("77", "", BEGAN_S))
    rows = json.loads(prime_train("runs", "--json", cwd=tmp_path).stdout)["runs"]
    assert [row["state"] for row in rows] == ["not known", "not known"]
    assert "state as of 2026-09-21 14:13:29 UTC; its job was not asked: `runs --ask` asks for it" in rows[0]["reason"]
    asked = prime_train("runs", "--json", "--ask", cwd=tmp_path)
    assert asked.returncode == 0
    assert asked.stderr.count("error: ") == 1, "a scheduler that did not answer is not asked again"
    rows = json.loads(asked.stdout)["runs"]
    assert [row["state"] for row in rows] == ["not known", "not known"]
    assert "its job is not known" in rows[1]["reason"]
