"""`run --spot`, `status`, `logs` and `stop` against a stand-in `sky` that records calls and plays scenes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prime_train.core.machines import SECRET
from tests.unit.cli.commands import PROGRAM, choose_start

SOURCE = Path(__file__).parents[3] / "src"
WANDB = ("--set", "prime_train.wandb.project=p")
PRICES = """
[[price]]
provider = "nebius"
gpu = "l40s"
gpus = 1
usd_per_gpu_hour = 2.0
spot = true
source = "tests"
"""
SPOT = ("run", "quickstart", "--spot", "--cloud", "nebius", "--bucket", "bucket-of-tests")


class Scene:
    """A folder in which a stand-in `sky` plays, and from which the command line starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.play = folder / "play"
        self.play.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        stand_in = Path(__file__).with_name("fake_sky.py")
        (programs / "sky").write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in} "$@"\n', encoding="utf-8")
        (programs / "sky").chmod(0o755)
        self.path = f"{programs}:{os.defpath}"
        prices = folder / "home/.cache/prime-train/prices.toml"
        prices.parent.mkdir(parents=True)
        prices.write_text(PRICES, encoding="utf-8")

    def set(self, **scene: Any) -> None:
        (self.play / "scene.json").write_text(json.dumps(scene), encoding="utf-8")

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": self.path,
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(SOURCE),
            "STAND_IN_SKY": str(self.play),
            "PRIME_TRAIN_SKY_POLL_S": "0",
            "COLUMNS": "100",
        }
        return subprocess.run(
            [*choose_start(words[0]), PROGRAM, *words],
            cwd=self.folder,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def calls(self) -> list[dict[str, Any]]:
        file = self.play / "calls.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def commands(self) -> list[str]:
        return [" ".join(call["argv"][:2]) for call in self.calls()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def job(state: str, **fields: Any) -> dict[str, Any]:
    return {"job_id": 7, "job_name": "quickstart", "status": state, "recovery_count": 0, **fields}


HERE = {"cloud": "Nebius", "region": "eu-north1", "accelerators": {"L40S": 1}}
THERE = {"cloud": "Nebius", "region": "us-central1", "accelerators": {"L40S": 1}}
LIFE = [
    [job("PENDING")],
    [job("PENDING")],
    [job("STARTING", **HERE)],
    [job("RUNNING", job_duration=600, **HERE)],
    [job("RUNNING", job_duration=3600, **HERE)],
    [job("RECOVERING", job_duration=3600, **THERE)],
    [job("RUNNING", job_duration=3700, recovery_count=1, **THERE)],
    [job("SUCCEEDED", job_duration=7200, recovery_count=1, **THERE)],
]
_FIRST = "attempt 1 starts from the beginning\n10:00:00  step 20 of 160 (12 %), loss 4.1\n"
_LATER = _FIRST + "checkpoint of step 40 complete: 9 MiB in 0.1 s\n10:05:00  step 57 of 160 (36 %), loss 3.9\n"
_AGAIN = "attempt 2 resumes from step 40\n10:20:00  step 44 of 160 (28 %), loss 3.8\n"
LOGS = ["", "", "", _FIRST, _LATER, "", _AGAIN, ""]


def test_a_job_is_submitted_and_each_phase_has_a_line(scene: Scene) -> None:
    scene.set(frames=LIFE, logs=LOGS)
    done = scene.run(*SPOT, "--yes")
    assert done.returncode == 0, done.stderr
    shown = [line.removeprefix("quickstart: ") for line in done.stderr.splitlines() if line.startswith("quickstart: ")]
    assert shown == [
        "waiting for SkyPilot's controller",
        "provisioning: Nebius, eu-north1, 1x L40S at $2.00 an hour",
        "running: Nebius, eu-north1, 1x L40S at $2.00 an hour",
        "step 20 of 160; 10 min 00 s and $0.33 so far",
        "syncing: checkpoint of step 40",
        "step 57 of 160; 1 h 00 min and $2.00 so far",
        "preempted at step 57; 1 h 00 min and $2.00 so far",
        "provisioning: Nebius, us-central1, 1x L40S at $2.00 an hour",
        "running: Nebius, us-central1, 1x L40S at $2.00 an hour",
        "recovered from step 40; 1 h 01 min and $2.06 so far",
        "succeeded; 2 h 00 min and $4.00 so far",
    ]
    assert done.stdout.splitlines()[0] == "quickstart"
    assert "succeeded" in done.stdout
    launched = yaml.safe_load((scene.play / "launched.yaml").read_text(encoding="utf-8"))
    assert launched["file_mounts"]["/prime-train-bucket"]["name"] == "bucket-of-tests"
    launch = next(call["argv"] for call in scene.calls() if call["argv"][:2] == ["jobs", "launch"])
    assert launch == ["jobs", "launch", "-n", "quickstart", str(scene.folder / "runs/quickstart.job.yaml"), "-d", "-y"]


COMMAND = (
    *("run", "--spot", "--cloud", "nebius", "--bucket", "bucket-of-tests", "--gpus", "1xl40s"),
    *("--run-name", "quickstart", "--set", "command.cwd=project", "--set", "command.checkpoints.dir=out"),
    *("--set", "command.checkpoints.layout=torch", "--set", "command.resume.how=itself"),
    *("--set", 'prime_train.spot.setup=["pip install torch"]', "--yes", "--", "python", "train.py"),
)


def test_a_command_is_submitted_and_its_steps_are_followed(scene: Scene) -> None:
    (scene.folder / "project").mkdir()
    (scene.folder / "project" / "train.py").write_text("")
    scene.set(frames=LIFE, logs=[text.replace(" of 160", "") for text in LOGS])
    done = scene.run(*COMMAND)
    assert done.returncode == 0, done.stderr
    assert "nebius: 1x L40S, $2.00 an hour, at most" in done.stderr
    assert "quickstart: preempted at step 57; 1 h 00 min and $2.00 so far" in done.stderr
    launched = yaml.safe_load((scene.play / "launched.yaml").read_text(encoding="utf-8"))
    assert launched["workdir"] == str(scene.folder / "project")
    assert json.loads(scene.run("status", "quickstart", "--json").stdout)["max_steps"] is None
    (scene.folder / "project" / "out").mkdir()
    (scene.folder / "project" / "out" / "step_5.pt").write_text("fetched from the bucket")
    assert scene.run(*COMMAND).returncode == 0  # the job of this name has its checkpoints in the bucket
    (scene.folder / "runs" / "quickstart.job.json").unlink()
    refused = scene.run(*COMMAND)
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr


def test_without_sky_the_file_is_written_and_two_commands_are_named(scene: Scene) -> None:
    done = scene.run(*SPOT, "--yes", PATH=os.defpath)
    assert done.returncode == 4
    assert "`sky` is not installed" in done.stderr
    assert "sky check" in done.stderr
    assert "sky jobs launch -n quickstart runs/quickstart.job.yaml" in done.stderr
    assert (
        yaml.safe_load((scene.folder / "runs/quickstart.job.yaml").read_text(encoding="utf-8"))["name"] == "quickstart"
    )


@pytest.mark.parametrize("version", ["0.13.0", "0.15.2", "1.14.0", "of my own"])
def test_another_version_of_sky_is_refused(scene: Scene, version: str) -> None:
    scene.set(frames=LIFE, version=version)
    done = scene.run(*SPOT, "--yes")
    assert done.returncode == 4
    assert "the job is written for 0.14" in done.stderr
    assert scene.commands() == ["--version"]


@pytest.mark.parametrize("command", ["queue", "launch"])
def test_without_credentials_the_two_commands_are_named(scene: Scene, command: str) -> None:
    scene.set(frames=LIFE, fail={command: [1, "sky.exceptions.NoCloudAccessError: No cloud access available."]})
    done = scene.run(*SPOT, "--yes")
    assert done.returncode == 4
    assert "SkyPilot has no credentials for a cloud" in done.stderr
    assert "sky jobs launch -n quickstart" in done.stderr


def test_a_failed_launch_names_the_last_lines(scene: Scene) -> None:
    scene.set(frames=LIFE, fail={"launch": [1, "quota of us-east-1\nis exhausted"]})
    done = scene.run(*SPOT, "--yes")
    assert done.returncode == 4
    assert "it failed with exit code 1" in done.stderr
    assert "quota of us-east-1 | is exhausted" in done.stderr


@pytest.mark.parametrize("command", ["queue", "launch"])
def test_a_call_that_hangs_is_ended(scene: Scene, command: str) -> None:
    scene.set(frames=LIFE, hang=[command])
    done = scene.run(*SPOT, "--yes", PRIME_TRAIN_SKY_LIMIT_S="3")
    assert done.returncode == 4
    assert "no answer within 3 s" in done.stderr


def test_a_job_of_the_same_name_is_never_submitted_twice(scene: Scene) -> None:
    scene.set(frames=LIFE, before=[job("RECOVERING")])
    done = scene.run(*SPOT, "--yes")
    assert done.returncode == 2
    assert "managed job 7 of this name is recovering" in done.stderr
    assert "jobs launch" not in scene.commands()


def test_a_finished_job_of_the_same_name_does_not_hinder(scene: Scene) -> None:
    scene.set(frames=LIFE, logs=LOGS, before=[{**job("CANCELLED"), "job_id": 3}])
    assert scene.run(*SPOT, "--yes").returncode == 0


def test_the_last_status_is_one_document_on_request(scene: Scene) -> None:
    scene.set(frames=[[job("RUNNING", job_duration=3600, **HERE)], [job("CANCELLED", job_duration=3600, **HERE)]])
    done = scene.run(*SPOT, "--yes", "--json")
    assert done.returncode == 75
    assert json.loads(done.stdout)["state"] == "CANCELLED"


def test_a_detached_job_is_not_followed(scene: Scene) -> None:
    scene.set(frames=LIFE)
    assert scene.run(*SPOT, "--yes", "--detach").returncode == 0
    assert scene.commands() == ["--version", "jobs queue", "jobs launch", "jobs queue"]


def test_ci_names_the_bucket_of_the_first_submission(scene: Scene) -> None:
    scene.set(frames=LIFE, logs=LOGS)
    words = ("run", "quickstart", "--spot", "--cloud", "nebius", "--yes", "--detach")
    refused = scene.run(*words, CI="true")
    assert (refused.returncode, "no bucket is named" in refused.stderr) == (2, True)
    assert scene.run(*words, CI="true", PRIME_TRAIN_SPOT_BUCKET="bucket-of-ci").returncode == 0
    launched = yaml.safe_load((scene.play / "launched.yaml").read_text(encoding="utf-8"))
    assert launched["file_mounts"]["/prime-train-bucket"]["name"] == "bucket-of-ci"


def test_the_monitors_variable_names_the_package_of_the_job(scene: Scene) -> None:
    address = "https://example.org/prime_train-2-py3-none-any.whl"
    done = scene.run(*SPOT, "--dry-run", PRIME_TRAIN_SPOT_PACKAGE=address)
    assert f"'prime-train[train] @ {address}'" in yaml.safe_load(done.stdout)["setup"]
    assert "from the package index" not in done.stderr


def test_an_option_of_spot_needs_spot(scene: Scene) -> None:
    done = scene.run("run", "quickstart", "--cloud", "aws", "--dry-run")
    assert (done.returncode, "without --spot" in done.stderr) == (2, True)


def test_without_a_terminal_nothing_is_rented_unasked(scene: Scene) -> None:
    scene.set(frames=LIFE)
    done = scene.run(*SPOT)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert "jobs launch" not in scene.commands()


def test_dry_run_prints_the_file_and_starts_nothing(scene: Scene) -> None:
    done = scene.run(*SPOT, "--dry-run")
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout)["name"] == "quickstart"
    assert sorted(path.name for path in scene.folder.iterdir()) == ["bin", "home", "play"]
    written = scene.run(*SPOT, "--dry-run", "--output", "job.yaml")
    assert (written.returncode, written.stdout) == (0, "")
    assert (scene.folder / "job.yaml").read_text(encoding="utf-8") == done.stdout
    assert scene.calls() == []


def test_an_output_file_creates_no_folder(scene: Scene) -> None:
    refused = scene.run(*SPOT, "--dry-run", "--output", "mistyped/job.yaml")
    assert refused.returncode == 2
    assert "it cannot be written: No such file or directory" in refused.stderr
    assert "mistyped/job.yaml" in refused.stderr
    assert not (scene.folder / "mistyped").exists()


@pytest.mark.parametrize("state", ["FAILED", "FAILED_SETUP", "FAILED_NO_RESOURCE", "FAILED_CONTROLLER"])
def test_a_failed_job_ends_with_5_and_its_reason(scene: Scene, state: str) -> None:
    scene.set(frames=[[job("STARTING")], [job(state, failure_reason="no machine in 9 regions")]])
    done = scene.run(*SPOT, "--yes")
    assert done.returncode == 5
    assert f"{state.lower().replace('_', ' ')}: no machine in 9 regions" in done.stderr


def test_an_unreadable_queue_is_no_job_list(scene: Scene) -> None:
    scene.set(frames=[{"error": "controller"}])
    done = scene.run(*SPOT, "--yes")
    assert done.returncode == 4
    assert "its answer is no list of jobs" in done.stderr


def test_a_secret_goes_by_its_name(scene: Scene) -> None:
    scene.set(frames=LIFE, logs=LOGS)
    missing = scene.run(*SPOT, *WANDB, "--yes")
    assert (missing.returncode, "WANDB_API_KEY is not set" in missing.stderr) == (4, True)
    value = "0f1e2d3c4b5a69788796a5b4c3d2e1f0a1b2c3d4"
    done = scene.run(*SPOT, *WANDB, "--yes", WANDB_API_KEY=value)
    assert done.returncode == 0, done.stderr
    launch = next(call for call in scene.calls() if call["argv"][:2] == ["jobs", "launch"])
    assert launch["secrets_present"] == ["WANDB_API_KEY"]
    assert launch["argv"][4:6] == ["--secret", "WANDB_API_KEY"]
    everything = "".join(path.read_text(encoding="utf-8") for path in scene.folder.rglob("*") if path.is_file())
    assert value not in everything + done.stdout + done.stderr


TWO_MACHINES = ("--set", "parallel.processes=2", "--set", "parallel.machines=2", "--yes")


def test_the_secret_of_two_machines_is_made_here_and_only_sky_reads_it(scene: Scene) -> None:
    scene.set(frames=LIFE, logs=LOGS)
    done = scene.run(*SPOT, *TWO_MACHINES)
    assert done.returncode == 0, done.stderr
    launch = next(call for call in scene.calls() if call["argv"][:2] == ["jobs", "launch"])
    assert launch["secrets_present"] == [SECRET]
    assert launch["argv"][4:6] == ["--secret", SECRET]
    assert yaml.safe_load((scene.play / "launched.yaml").read_text(encoding="utf-8"))["secrets"] == {SECRET: ""}


def test_a_secret_of_the_user_is_in_no_file_and_a_weak_one_rents_nothing(scene: Scene) -> None:
    scene.set(frames=LIFE, logs=LOGS)
    weak = scene.run(*SPOT, *TWO_MACHINES, **{SECRET: "of this run"})
    assert (weak.returncode, "it has 11 characters" in weak.stderr) == (2, True)
    assert scene.calls() == []
    value = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
    done = scene.run(*SPOT, *TWO_MACHINES, **{SECRET: value})
    assert done.returncode == 0, done.stderr
    everything = "".join(path.read_text(encoding="utf-8") for path in scene.folder.rglob("*") if path.is_file())
    assert value not in everything + done.stdout + done.stderr


def test_without_sky_the_command_that_is_named_makes_the_secret(scene: Scene) -> None:
    done = scene.run(*SPOT, *TWO_MACHINES, PATH=os.defpath)
    assert done.returncode == 4
    assert f"{SECRET}=$(openssl rand -hex 32) sky jobs launch -n quickstart --secret {SECRET}" in done.stderr


def test_tokens_of_the_hub_and_of_the_environment_are_in_no_file(scene: Scene) -> None:
    scene.set(frames=LIFE, logs=LOGS, fail={"queue": [1, "the token hub-token-0123456789 and env-token-0123456789"]})
    token = scene.folder / "home/.cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.write_text("hub-token-0123456789", encoding="utf-8")
    done = scene.run(*SPOT, "--yes", HF_TOKEN="env-token-0123456789")
    assert done.returncode == 4
    token.unlink()
    written = [path for path in scene.folder.rglob("*") if path.is_file() and path.name != "scene.json"]
    everything = "".join(path.read_text(encoding="utf-8") for path in written)
    assert "hub-token-0123456789" not in everything
    assert "env-token-0123456789" not in everything + done.stdout + done.stderr
    assert "HF_TOKEN" in (scene.folder / "runs/quickstart.job.yaml").read_text(encoding="utf-8")


@pytest.fixture
def submitted(scene: Scene) -> Scene:
    scene.set(frames=[[job("STARTING", **HERE)], [job("SUCCEEDED")]])
    assert scene.run(*SPOT, "--yes").returncode == 0
    (scene.play / "frame").unlink()
    return scene


def test_status_logs_and_stop_reach_the_job(submitted: Scene) -> None:
    submitted.set(frames=[[job("RUNNING", job_duration=3600, recovery_count=2, **HERE)]], logs=[_LATER])
    document = json.loads(submitted.run("status", "quickstart", "--json").stdout)
    assert {key: document[key] for key in ("version", "kind", "job_id", "state", "step", "recoveries")} == {
        "version": 1,
        "kind": "managed_job",
        "job_id": 7,
        "state": "RUNNING",
        "step": 57,
        "recoveries": 2,
    }
    assert document["newest_checkpoint"] == 40
    assert "57 of 160" in submitted.run("status", "quickstart").stdout
    assert "quickstart is a managed job" in submitted.run("status").stderr
    assert submitted.run("logs", "quickstart").stdout == _LATER
    stopped = submitted.run("stop", "quickstart")
    assert stopped.stdout == "managed job 7 is cancelled; its checkpoints stay in the bucket bucket-of-tests\n"
    assert (submitted.play / "cancelled").read_text(encoding="utf-8") == "7"


def test_the_bucket_of_the_first_submission_is_used_again(submitted: Scene) -> None:
    again = submitted.run("run", "quickstart", "--spot", "--cloud", "nebius", "--dry-run")
    assert yaml.safe_load(again.stdout)["file_mounts"]["/prime-train-bucket"]["name"] == "bucket-of-tests"


def _cut(record: Path) -> None:
    record.write_text(record.read_text(encoding="utf-8")[:40], encoding="utf-8")


def _other(record: Path) -> None:
    record.write_text('{"version": 1, "run": "../../etc/passwd"}', encoding="utf-8")


@pytest.mark.parametrize("damage", [_cut, _other])
def test_a_damaged_record_is_refused(submitted: Scene, damage: Callable[[Path], None]) -> None:
    damage(submitted.folder / "runs/quickstart.job.json")
    done = submitted.run("status", "quickstart")
    assert (done.returncode, "it is no record of a job" in done.stderr) == (2, True)
