"""Starts the command line against a Slurm of the tests, and holds trainers in their jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from prime_train.core.rundir import RunDir
from tests.system.away.slurm_cluster import Cluster
from tests.unit.cli.commands import clean_environment

HOOKS = Path(__file__).with_name("slurm_hooks")
PROGRAM = (sys.executable, "-c", "from prime_train.cli.entry import main; main()")


def prime_train(
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


def submit(on: Cluster, cwd: Path, *options: str, variables: dict[str, str] | None = None) -> str:
    """The number of a submitted job of run.toml."""
    command = ("run", "run.toml", "--slurm", "--json", "--sbatch", "gres=none", *options)
    done = prime_train(on, cwd, *command, variables=variables)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["job_id"])


def run_dir_of(cwd: Path) -> RunDir:
    return RunDir((cwd / "runs" / "small").resolve())


def hook(waits: Path, steps: int) -> dict[str, str]:
    """The variables that make a trainer wait after `steps` steps."""
    paths = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": paths, "PRIME_TRAIN_TEST_WAITS": str(waits), "PRIME_TRAIN_TEST_STEPS": str(steps)}
