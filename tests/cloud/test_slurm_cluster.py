"""Runs on a real Slurm of one machine: time limits, stops, cancels, errors, and what sbatch reads from the script."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.cloud import slurm
from prime_train.cloud.slurm import Job, Resources
from prime_train.core.rundir import RunDir
from prime_train.views.status import fold_events
from tests.cli import small
from tests.cli.commands import clean_environment, wait_until
from tests.cloud.slurm_cluster import Cluster, cluster

pytestmark = pytest.mark.slow

HOOKS = Path(__file__).with_name("slurm_hooks")
PROGRAM = (sys.executable, "-c", "from prime_train.cli.entry import main; main()")


@pytest.fixture(scope="module")
def on_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    small.write(tmp_path)
    return tmp_path


def _prime_train(
    on: Cluster, cwd: Path, *arguments: str, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env=clean_environment() | dict(on.variables) | (variables or {}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _submit(on: Cluster, cwd: Path, *options: str, variables: dict[str, str] | None = None) -> str:
    """The number of a submitted job of run.toml."""
    command = ("run", "run.toml", "--slurm", "--json", "--sbatch", "gres=none", *options)
    done = _prime_train(on, cwd, *command, variables=variables)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["job_id"])


def _run_dir(cwd: Path) -> RunDir:
    return RunDir((cwd / "runs" / "small").resolve())


def _weights(run_dir: RunDir) -> str:
    files = sorted(run_dir.final.glob("*.safetensors"))
    assert files
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _hook(waits: Path, steps: int) -> dict[str, str]:
    """The variables that make a trainer wait after `steps` steps."""
    paths = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": paths, "PRIME_TRAIN_TEST_WAITS": str(waits), "PRIME_TRAIN_TEST_STEPS": str(steps)}


ENDLESS = ("--set", "run.max_steps=1000000")


def test_three_time_limits_leave_the_weights_of_an_uninterrupted_run(on_slurm: Cluster, tmp_path: Path) -> None:
    """Slurm sends its signal 75 s before the limit of 2 min, up to 30 s early. Each trainer waits for it."""
    interrupted, straight, waits = (tmp_path / name for name in ("interrupted", "straight", "waits"))
    for folder in (interrupted, straight):
        folder.mkdir()
        small.write(folder)
    waits.mkdir()
    settings = ("--set", "run.max_steps=40", "--set", "checkpoint.final=hf", "--set", "prime_train.stop_grace_s=45")
    bound = ("--set", "prime_train.restart.max_fruitless_attempts=8")  # signals that come before the first step
    job_id = _submit(on_slurm, interrupted, *settings, *bound, "--time-limit", "2", variables=_hook(waits, 6))
    assert _prime_train(on_slurm, straight, "run", "run.toml", *settings).returncode == 0
    ended = on_slurm.wait(job_id, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", limit_s=900)
    run_dir = _run_dir(interrupted)
    output = (run_dir.slurm / f"job-{job_id}.log").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), output
    assert len(list(waits.iterdir())) == 3
    assert int(ended["Restarts"]) >= 3
    assert output.count("is requeued: the time limit is near") == int(ended["Restarts"])
    assert _weights(run_dir) == _weights(_run_dir(straight))
    steps = [json.loads(line)["step"] for line in run_dir.metrics.read_text().splitlines()]
    assert steps == list(range(1, 41))


def test_stop_saves_and_the_job_is_not_requeued(on_slurm: Cluster, here: Path) -> None:
    job_id = _submit(on_slurm, here, *ENDLESS, "--time-limit", "30", "--set", "checkpoint.interval_steps=1000000")
    run_dir = _run_dir(here)
    wait_until(lambda: fold_events(run_dir).step > 3)
    shown = json.loads(_prime_train(on_slurm, here, "status", "small", "--json").stdout)
    assert (shown["state"], shown["slurm"]["job_id"], shown["slurm"]["state"]) == ("running", job_id, "RUNNING")
    again = _prime_train(on_slurm, here, "run", "run.toml", "--slurm", "--sbatch", "gres=none")
    assert again.returncode == 2, again.stderr
    logs = _prime_train(on_slurm, here, "logs", "small", "-n", "2")
    assert logs.returncode == 0, logs.stderr
    stopped = _prime_train(on_slurm, here, "stop", "small")
    assert stopped.returncode == 0, stopped.stderr
    ended = on_slurm.wait(job_id, "FAILED", "COMPLETED", "CANCELLED")
    assert (ended["ExitCode"], ended["Restarts"]) == ("75:0", "0")
    shown = json.loads(_prime_train(on_slurm, here, "status", "small", "--json").stdout)
    assert shown["state"] == "stopped"
    assert shown["checkpoints"]["newest_complete"] == shown["step"] > 3
    assert "stopped by request" in (run_dir.slurm / f"job-{job_id}.log").read_text()


def test_a_waiting_job_is_shown_and_cancelled(on_slurm: Cluster, here: Path) -> None:
    job_id = _submit(on_slurm, here, "--time-limit", "30", "--sbatch", "begin=now+1hour")
    shown = json.loads(_prime_train(on_slurm, here, "status", "small", "--json").stdout)
    assert (shown["state"], shown["resumable"]) == ("queued", True)
    assert (shown["slurm"]["state"], shown["slurm"]["reason"]) == ("PENDING", "BeginTime")
    text = _prime_train(on_slurm, here, "status").stdout
    assert "queued" in text
    logs = _prime_train(on_slurm, here, "logs", "small")
    assert (logs.returncode, logs.stdout) == (0, "")
    stopped = _prime_train(on_slurm, here, "stop", "small")
    assert stopped.returncode == 0, stopped.stderr
    assert on_slurm.wait(job_id, "CANCELLED")["Restarts"] == "0"
    assert _submit(on_slurm, here, "--time-limit", "30", "--sbatch", "begin=now+1hour") != job_id


def test_a_job_that_a_person_cancels_saves_and_stays_cancelled(on_slurm: Cluster, here: Path) -> None:
    job_id = _submit(on_slurm, here, *ENDLESS, "--time-limit", "30", "--set", "checkpoint.interval_steps=1000000")
    run_dir = _run_dir(here)
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
    job_id = _submit(on_slurm, here, "--time-limit", "30")
    ended = on_slurm.wait(job_id, "FAILED")
    code = int(ended["ExitCode"].partition(":")[0])
    assert (code in (1, 5), ended["Restarts"]) == (True, "0")
    assert f"ends: the run ended with exit code {code}" in (_run_dir(here).slurm / f"job-{job_id}.log").read_text()


def test_a_job_without_progress_is_requeued_only_so_often(on_slurm: Cluster, here: Path) -> None:
    """Its trainer waits before the first step, so each time limit comes before there is something to save."""
    options = ("--set", "prime_train.stop_grace_s=20", "--set", "prime_train.restart.max_fruitless_attempts=2")
    (here / "waits").mkdir()
    job_id = _submit(on_slurm, here, *options, "--time-limit", "1", variables=_hook(here / "waits", 0))
    ended = on_slurm.wait(job_id, "FAILED", "COMPLETED", limit_s=240)
    assert (ended["ExitCode"], ended["Restarts"]) == ("6:0", "1")
    assert "2 starts of the job brought no checkpoint" in (_run_dir(here).slurm / f"job-{job_id}.log").read_text()
    shown = json.loads(_prime_train(on_slurm, here, "status", "small", "--json").stdout)
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
    job = Job("run", folder, folder / "slurm", (*program, name), Resources(0, 1, 100, 5, 60), ("HOME", "KEPT", "PATH"))
    script = tmp_path / "job.sh"
    script.write_text(slurm.script(job), encoding="utf-8")
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
