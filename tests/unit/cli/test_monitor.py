"""`prime-train monitor`, as the workflow calls it: real GitHub requests to this machine, a stand-in for `sky`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.away.monitor.poll import RunStatus
from tests.fakes.github_server import REPOSITORY, TOKEN, serve
from tests.unit.away.world import World
from tests.unit.cli.commands import prime_train

WANDB = ("--wandb", "team/project/id", "--bucket", "checkpoints")
ROWS = [{"job_id": 3, "job_name": "small", "status": "RUNNING", "recovery_count": 1}]
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def environment(here: Path) -> dict[str, str]:
    """A queue with a live job, and a W&B that has no login."""
    folder = here / "bin"
    folder.mkdir()
    sky = folder / "sky"
    sky.write_text(f"#!{sys.executable}\nprint({json.dumps(ROWS)!r})\n", encoding="utf-8")
    sky.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "WANDB_BASE_URL": NOWHERE, "WANDB_API_KEY": "", "HOME": str(here)}


def monitor(here: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return prime_train("monitor", "run.toml", *WANDB, *options, cwd=here, **environment)


def test_a_dry_run_needs_no_github(here: Path, environment: dict[str, str]) -> None:
    done = monitor(here, environment, "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["action"], document["issue"]) == (0, "wait", None)
    assert document["jobs"] == [{"id": 3, "state": "RUNNING", "recoveries": 1}]
    assert document["verdict"] == "unknown"


def test_a_poll_writes_an_issue_and_a_summary(here: Path, environment: dict[str, str]) -> None:
    world = World(RunStatus("unknown", "", False, None))
    summary = here / "summary.md"
    with serve(world) as server:
        github = {"GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": server.url}
        done = monitor(here, environment | github | {"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 0, done.stderr
    assert world.issues[0]["title"] == "Training small"
    assert "3 RUNNING, 1 recoveries" in done.stdout
    assert "| action | `wait: job 3 is RUNNING" in summary.read_text(encoding="utf-8")
    assert TOKEN not in done.stdout + done.stderr


def test_a_github_that_is_gone_is_out_of_reach(here: Path, environment: dict[str, str]) -> None:
    github = {"GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": "not-the-token"}
    with serve(World(RunStatus("unknown", "", False, None))) as server:
        done = monitor(here, environment | github | {"GITHUB_API_URL": server.url})
    assert done.returncode == 4
    assert "issues: write" in done.stderr


@pytest.mark.parametrize("given", ["team/project", "a/b/c/d", "https://wandb.ai/a/b/runs/c", "a/b/c --x"])
def test_a_wrong_name_of_the_run(here: Path, environment: dict[str, str], given: str) -> None:
    done = prime_train("monitor", "run.toml", "--wandb", given, "--dry-run", cwd=here, **environment)
    assert done.returncode == 2
    assert "ENTITY/PROJECT/ID" in done.stderr


def test_a_run_whose_checkpoints_another_machine_would_not_find(here: Path, environment: dict[str, str]) -> None:
    done = prime_train("monitor", "run.toml", "--wandb", "a/b/c", "--dry-run", cwd=here, **environment)
    assert done.returncode == 2
    assert "--bucket with the name that run --spot showed" in done.stderr


def test_without_sky(here: Path, environment: dict[str, str]) -> None:
    done = monitor(here, environment | {"PATH": "/usr/bin:/bin"}, "--dry-run")
    assert done.returncode == 4
    assert "pip install skypilot" in done.stderr
