"""Runs on a real Slurm of one machine: time limits, stops, cancels, errors, and what sbatch reads from the script."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.away.slurm import script as slurm
from prime_train.away.slurm.script import Resources, SlurmScript
from prime_train.away.slurm.slurm_program import list_launcher
from prime_train.core.machines import SECRET
from prime_train.views.run.status import fold_events
from tests.system.away.slurm_cluster import Cluster, cluster
from tests.system.away.slurm_runs import hook, prime_train, run_dir_of, submit
from tests.unit.cli import small
from tests.unit.cli.commands import wait_until


@pytest.fixture(scope="module")
def on_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    small.write(tmp_path)
    return tmp_path


ENDLESS = ("--set", "run.max_steps=1000000")


def test_stop_saves_and_the_job_is_not_requeued(on_slurm: Cluster, here: Path) -> None:
    job_id = submit(on_slurm, here, *ENDLESS, "--time-limit", "30", "--set", "checkpoint.interval_steps=1000000")
    run_dir = run_dir_of(here)
    wait_until(lambda: fold_events(run_dir).step > 3)
    shown = json.loads(prime_train(on_slurm, here, "status", "small", "--json").stdout)
    assert (shown["state"], shown["slurm"]["job_id"], shown["slurm"]["state"]) == ("running", job_id, "RUNNING")
    again = prime_train(on_slurm, here, "run", "run.toml", "--slurm", "--sbatch", "gres=none")
    assert again.returncode == 2, again.stderr
    logs = prime_train(on_slurm, here, "logs", "small", "-n", "2")
    assert logs.returncode == 0, logs.stderr
    stopped = prime_train(on_slurm, here, "stop", "small")
    assert stopped.returncode == 0, stopped.stderr
    ended = on_slurm.wait(job_id, "FAILED", "COMPLETED", "CANCELLED")
    assert (ended["ExitCode"], ended["Restarts"]) == ("75:0", "0")
    shown = json.loads(prime_train(on_slurm, here, "status", "small", "--json").stdout)
    assert shown["state"] == "stopped"
    assert shown["checkpoints"]["newest_complete"] == shown["step"] > 3
    assert "stopped by request" in (run_dir.slurm / f"job-{job_id}.log").read_text()


def test_a_waiting_job_is_shown_and_cancelled(on_slurm: Cluster, here: Path) -> None:
    job_id = submit(on_slurm, here, "--time-limit", "30", "--sbatch", "begin=now+1hour")
    shown = json.loads(prime_train(on_slurm, here, "status", "small", "--json").stdout)
    assert (shown["state"], shown["resumable"]) == ("queued", True)
    assert (shown["slurm"]["state"], shown["slurm"]["reason"]) == ("PENDING", "BeginTime")
    text = prime_train(on_slurm, here, "status").stdout
    assert "queued" in text
    logs = prime_train(on_slurm, here, "logs", "small")
    assert (logs.returncode, logs.stdout) == (0, "")
    stopped = prime_train(on_slurm, here, "stop", "small")
    assert stopped.returncode == 0, stopped.stderr
    assert on_slurm.wait(job_id, "CANCELLED")["Restarts"] == "0"
    assert submit(on_slurm, here, "--time-limit", "30", "--sbatch", "begin=now+1hour") != job_id


def test_a_job_that_a_person_cancels_saves_and_stays_cancelled(on_slurm: Cluster, here: Path) -> None:
    job_id = submit(on_slurm, here, *ENDLESS, "--time-limit", "30", "--set", "checkpoint.interval_steps=1000000")
    run_dir = run_dir_of(here)
    wait_until(lambda: fold_events(run_dir).step > 3)
    on_slurm.run("scancel", job_id)
    ended = on_slurm.wait(job_id, "CANCELLED")
    wait_until(lambda: "left to Slurm" in (run_dir.slurm / f"job-{job_id}.log").read_text())
    assert ended["Restarts"] == "0"
    assert fold_events(run_dir).state == "stopped"
    assert list(run_dir.checkpoints.glob("step_*/COMPLETE.json"))


def test_a_run_that_cannot_work_is_not_requeued(on_slurm: Cluster, here: Path) -> None:
    for file in (here / "text").iterdir():
        file.unlink()
    job_id = submit(on_slurm, here, "--time-limit", "30")
    ended = on_slurm.wait(job_id, "FAILED")
    code = int(ended["ExitCode"].partition(":")[0])
    assert (code in (1, 5), ended["Restarts"]) == (True, "0")
    assert f"ends: the run ended with exit code {code}" in (run_dir_of(here).slurm / f"job-{job_id}.log").read_text()


def test_a_job_without_progress_is_requeued_only_so_often(on_slurm: Cluster, here: Path) -> None:
    """Its trainer waits before the first step, so each time limit comes before there is something to save."""
    options = ("--set", "prime_train.stop_grace_s=20", "--set", "prime_train.restart.max_fruitless_attempts=2")
    (here / "waits").mkdir()
    job_id = submit(on_slurm, here, *options, "--time-limit", "1", variables=hook(here / "waits", 0))
    ended = on_slurm.wait(job_id, "FAILED", "COMPLETED", limit_s=240)
    assert (ended["ExitCode"], ended["Restarts"]) == ("6:0", "1")
    assert "2 starts of the job brought no checkpoint" in (run_dir_of(here).slurm / f"job-{job_id}.log").read_text()
    shown = json.loads(prime_train(on_slurm, here, "status", "small", "--json").stdout)
    assert shown["slurm"]["starts"] == 2


HOSTILE = (
    "plain",
    "two words",
    "quote'single",
    'quote"double',
    "percent%jand%%",
    "hash #SBATCH --hold",
    "dollar$HOME`id`$(id)",
    "semi;colon&&true|false",
    "tab-free ünïcödé 漢字",
    "star*?[a]{b,c}",
    "-dash --leading",
    "equals=comma,colon:",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_sbatch_and_bash_read_what_was_written(on_slurm: Cluster, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    (folder / "slurm").mkdir(parents=True)
    program = (sys.executable, "-c", "import os, sys; print(repr((os.getcwd(), sys.argv[1:], os.environ.get('KEPT'))))")
    job = SlurmScript(
        "run", folder, folder / "slurm", (*program, name), Resources(0, 1, 100, 5, 60), ("HOME", "KEPT", "PATH")
    )
    script = tmp_path / "job.sh"
    script.write_text(slurm.write_script(job), encoding="utf-8")
    environment = {**os.environ, **on_slurm.variables, "KEPT": name, "LEFT_OUT": "x"}
    done = subprocess.run(
        ["sbatch", "--parsable", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    on_slurm.wait(job_id, "COMPLETED")
    assert (folder / "slurm" / f"job-{job_id}.log").read_text() == f"{(str(folder), [name], name)!r}\n", shlex.quote(
        name
    )


_MAKES_A_SECRET = f"""
import os, subprocess, sys
os.environ[{SECRET!r}] = "made-" + "in-the-job"
export = [word for word in {list_launcher({"SLURM_JOB_NUM_NODES": "2"})!r} if word.startswith("--export")]
shown = "import os; print('the step has', os.environ.get({SECRET!r}), os.environ.get('LEFT_OUT'))"
sys.exit(subprocess.run(["srun", "--ntasks=1", *export, sys.executable, "-c", shown]).returncode)
"""


def test_a_secret_that_the_job_makes_reaches_its_step_and_slurm_keeps_none(on_slurm: Cluster, tmp_path: Path) -> None:
    """srun hands on the names of the job's --export alone, unless it is asked for all."""
    (tmp_path / "slurm").mkdir()
    exported = ("HOME", "PATH", "LD_LIBRARY_PATH")
    job = SlurmScript(
        *("run", tmp_path, tmp_path / "slurm", (sys.executable, "-c", _MAKES_A_SECRET.strip().replace("\n", "; "))),
        *(Resources(0, 1, 100, 5, 60), exported),
    )
    script = tmp_path / "job.sh"
    script.write_text(slurm.write_script(job), encoding="utf-8")
    environment = {**os.environ, **on_slurm.variables, "LEFT_OUT": "x"}
    done = subprocess.run(
        ["sbatch", "--parsable", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    shown = on_slurm.wait(job_id, "COMPLETED", "FAILED")
    assert (tmp_path / "slurm" / f"job-{job_id}.log").read_text() == "the step has made-in-the-job None\n"
    assert "made-in-the-job" not in repr(shown)
    kept = [path for path in (on_slurm.folder / "state").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"made-in-the-job" in path.read_bytes()]
