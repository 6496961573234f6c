from __future__ import annotations

import json
import random
import stat
import string
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.away.monitor.driver import PollDriver, Watched, find_sky, run_command
from prime_train.away.monitor.github import Repository
from prime_train.away.monitor.poll import PollResult, PollSetting, RunStatus, as_json, as_summary, poll
from prime_train.core.errors import UserError
from tests.fakes.github_server import REPOSITORY, TOKEN, serve
from tests.unit.away.world import AUTHOR, World
from tests.unit.cli.commands import wait_until

# Both stand-ins keep their calls in a file. A launch adds a job to the queue that the other one prints.
STAND_IN = """#!{python}
import json, os, sys, fcntl
from pathlib import Path
here = Path({here!r})
with open(here / "lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with open(here / "calls", "a") as calls:
        calls.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
    queue = json.loads((here / "queue.json").read_text())
    kind = [{name!r}, *sys.argv[1:3]]
    if kind[:2] == ["prime-train", "status"]:
        print((here / "status.json").read_text())
        sys.exit(3)
    elif kind[:2] == ["prime-train", "run"]:
        if (here / "refuse").exists():
            sys.exit("no credentials: " + os.environ["CLOUD_API_KEY"])
        queue.append({{"job_id": len(queue) + 1, "job_name": "demo", "status": "STARTING", "recovery_count": 0}})
        (here / "queue.json").write_text(json.dumps(queue))
    elif kind == ["sky", "jobs", "queue"]:
        if (here / "broken").exists():
            sys.exit(1)
        print(json.dumps(queue))
    elif kind == ["sky", "jobs", "cancel"]:
        (here / "queue.json").write_text(json.dumps([row | {{"status": "CANCELLED"}} for row in queue]))
    assert "GITHUB_TOKEN" not in os.environ
"""


class Scene:
    """A folder with a stand-in for `sky` and one for `prime-train`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sky", "prime-train"):
            path = folder / name
            path.write_text(STAND_IN.format(python=sys.executable, here=str(folder), name=name), encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.write(
            "queue.json", [{"job_id": 1, "job_name": "demo", "status": "FAILED_CONTROLLER", "recovery_count": 1}]
        )
        self.write("status.json", {"version": 1, "verdict": "crashed", "why": "silent", "resumable": True, "step": 9})

    def write(self, name: str, document: object) -> None:
        (self.folder / name).write_text(json.dumps(document), encoding="utf-8")

    def calls(self, *start: str) -> list[list[str]]:
        lines = (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        return [call for call in map(json.loads, lines) if call[: len(start)] == list(start)]

    def driver(self, url: str) -> PollDriver:
        environment = {"PATH": "/usr/bin:/bin", "GITHUB_TOKEN": TOKEN, "CLOUD_API_KEY": "very-secret-value"}
        return PollDriver(
            Repository(url, REPOSITORY, TOKEN, lambda _: None),
            Watched("run.toml", "demo", "e/p/i", bucket="checkpoints", max_usd_per_hour=20.0),
            str(self.folder / "sky"),
            environment,
            (str(self.folder / "prime-train"),),
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def drive(scene: Scene, world: World, url: str) -> PollResult:
    return poll(PollSetting("demo", AUTHOR), scene.driver(url), world.clock)


def test_a_poll_over_real_http_resumes_a_dead_run(scene: Scene) -> None:
    world = World(RunStatus("unknown", "", False, None))
    with serve(world) as server:
        result = drive(scene, world, server.url)
        assert result.outcome == "resume 1 started"
        assert drive(scene, world, server.url).decision.action == "wait"
    started = scene.calls("prime-train", "run")
    options = ["--spot", "--cloud", "auto", "--resume", "auto", "--run-name", "demo"]
    options += ["--bucket", "checkpoints", "--max-usd-per-hour", "20", "--yes", "--detach"]
    assert started == [["prime-train", "run", "run.toml", *options]]


def test_a_failed_start_is_in_the_issue_without_its_secrets(scene: Scene) -> None:
    (scene.folder / "refuse").touch()
    world = World(RunStatus("unknown", "", False, None))
    with serve(world) as server:
        result = drive(scene, world, server.url)
    assert "no credentials" in result.outcome
    written = json.dumps([world.issues, world.comments, list(result)])
    assert "very-secret-value" not in written
    assert "no credentials" in written


@pytest.mark.parametrize("seed", range(6))
def test_no_secret_leaves_the_machine(scene: Scene, seed: int) -> None:
    """Secrets in the environment that a failing command and a verdict repeat: none in issue, result or summary."""
    draw = random.Random(seed)
    values = ["".join(draw.choices(string.ascii_letters + string.digits + "/+=$'", k=24)) for _ in range(3)]
    environment = dict(zip(("CLOUD_API_KEY", "WANDB_API_KEY", "MY_TOKEN"), values, strict=True))
    (scene.folder / "refuse").touch()
    why = f"silent; {values[1]} and {values[2]}"
    scene.write("status.json", {"version": 1, "verdict": "crashed", "why": why, "resumable": True, "step": 9})
    world = World(RunStatus("unknown", "", False, None))
    with serve(world) as server:
        driver = scene.driver(server.url)
        driver = replace(driver, environment={**driver.environment, **environment})
        result = poll(PollSetting("demo", AUTHOR), driver, world.clock)
    assert "no credentials" in result.outcome
    document = as_json("demo", result)
    texts = [json.dumps([world.issues, world.comments]), as_summary(document), str(document)]
    texts += [line for call in scene.calls() for line in call]
    for value in (*values, *(json.dumps(value)[1:-1] for value in values)):
        assert not any(value in text for text in texts)


def test_no_start_while_the_queue_cannot_be_read(scene: Scene) -> None:
    (scene.folder / "broken").touch()
    world = World(RunStatus("unknown", "", False, None))
    with serve(world) as server:
        result = drive(scene, world, server.url)
    assert (result.decision.action, result.reading.jobs) == ("wait", None)
    assert scene.calls("prime-train", "run") == []


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    done = run_command(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], 1.0, {"PATH": "/usr/bin:/bin"})
    assert done.code is None
    wait_until(lambda: _has_ended(int(done.output)))


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_command_that_does_not_exist() -> None:
    assert run_command(["/nowhere/sky"], 1.0, {}).code == 127


def test_a_hosted_runner_needs_a_shared_queue(scene: Scene) -> None:
    here = {"PATH": str(scene.folder)}
    hosted = here | {"RUNNER_ENVIRONMENT": "github-hosted"}
    assert (
        find_sky(here)
        == find_sky(hosted | {"SKYPILOT_API_SERVER_ENDPOINT": "https://sky"})
        == str(scene.folder / "sky")
    )
    with pytest.raises(UserError, match="SKYPILOT_API_SERVER_ENDPOINT"):
        find_sky(hosted)
    with pytest.raises(UserError, match="missing"):
        find_sky({"PATH": "/nowhere"})
