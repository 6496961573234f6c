"""Every job file is loaded by a real SkyPilot, or refused here for the right reason."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prime_train.away.sky import commands, task
from prime_train.away.sky.commands import clouds
from prime_train.away.sky.job_end import RECOVERED
from prime_train.away.sky.task import SkyJobPlan
from prime_train.away.sky.workdir import list_left_out
from prime_train.core.errors import UserError
from prime_train.core.machines import SECRET
from prime_train.registry.gpus import presets
from tests.system.away.test_job_plan import TWO_MACHINES as TWO_MACHINES_CONFIG
from tests.system.away.test_job_plan import plan_text, plan_with_backup
from tests.unit.away.plans import CLOUDS, COMMAND, NEED_A_FOLDER, plan, plan_command

PYTHON = os.environ.get("PRIME_TRAIN_SKY_PYTHON")
pytestmark = [
    pytest.mark.sky,
    pytest.mark.skipif(PYTHON is None, reason="PRIME_TRAIN_SKY_PYTHON names no interpreter with SkyPilot"),
]
_FEATURES = {
    "spot": "SPOT_INSTANCE",
    "bucket_mount": "STORAGE_MOUNTING",
    "multi_node": "MULTI_NODE",
    "docker": "DOCKER_IMAGE",
}
REFUSED = {
    "lambda": "Lambda has no spot machines",
    "kubernetes": "Kubernetes has no spot machines",
    "vast": "SkyPilot mounts no bucket on Vast, and the config has no backup",
    "runpod": "SkyPilot mounts no bucket on RunPod, and the config has no backup",
}


ARGUMENTS = [
    [*commands.launch_arguments("a", Path("job.yaml"), ("WANDB_API_KEY",)), "-d", "-y"],
    commands.QUEUE,
    ["jobs", "logs", "--no-follow", "7"],
    ["jobs", "logs", "--follow", "7"],
    ["jobs", "cancel", "-y", "7"],
]


def load(texts: dict[str, str], home: Path, folders: list[Path]) -> dict[str, Any]:
    """What SkyPilot makes of task files, in one process, with a home folder of its own."""
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("sky_program.py"))],
        input=json.dumps(
            {"tasks": texts, "arguments": [words[1:] for words in ARGUMENTS], "folders": [*map(str, folders)]}
        ),
        env={
            "HOME": str(home),
            "PATH": os.defpath,
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "WANDB_API_KEY": "of the environment",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


TWO_MACHINES = plan_text(TWO_MACHINES_CONFIG, "aws")
WITH_BACKUP = {cloud: plan_with_backup("s3", cloud) for cloud in ("vast", "runpod")}  # they mount no bucket


@pytest.fixture(scope="module")
def planned() -> tuple[dict[str, SkyJobPlan], dict[str, str]]:
    """The jobs of every preset on every cloud, and the reasons of those that are refused."""
    jobs: dict[str, SkyJobPlan] = {}
    refused: dict[str, str] = {}
    for preset in presets():
        for cloud in CLOUDS:
            try:
                jobs[f"{preset} {cloud}"] = plan(preset, cloud)
            except UserError as error:
                refused[f"{preset} {cloud}"] = error.what
    return jobs, refused


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of commands: the first has a .skyignore and the second does not, and git ignores files in both."""
    made = []
    for name in ("skyignore", "git"):
        folder = tmp_path_factory.mktemp(name)
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        (folder / ".gitignore").write_text("*.log\nbuilt\n")
        for path in (
            "a.log",
            "deep/a.log",
            "deep/b.pem",
            "deep/built/x",
            "built/x",
            ".hidden/b.pem",
            ".env",
            "top",
            "deep/top",
        ):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("")
        made.append(folder)
    (made[0] / ".skyignore").write_text("# of tests\n\n*.pem\n.env\n/top\ndeep/built\n  .hidden  \n")
    return made


@pytest.fixture(scope="module")
def command(folders: list[Path]) -> SkyJobPlan:
    return plan_command(COMMAND, folders[0])


@pytest.fixture(scope="module")
def answer(
    planned: tuple[dict[str, SkyJobPlan], dict[str, str]],
    command: SkyJobPlan,
    folders: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    texts = {name: task.to_yaml(task.document(job)) for name, job in planned[0].items()}
    texts["two machines"] = task.to_yaml(task.document(TWO_MACHINES))
    texts |= {f"backup {cloud}": task.to_yaml(task.document(job)) for cloud, job in WITH_BACKUP.items()}
    texts |= {"misspelt key": "name: a\nresorces: {}\n", "wrong mode": "file_mounts: {/b: {name: bkt, mode: MONT}}\n"}
    texts["command"] = task.to_yaml(task.document(command))
    return load(texts, tmp_path_factory.mktemp("home"), folders)


def test_sky_accepts_every_job_and_reads_what_was_meant(
    planned: tuple[dict[str, SkyJobPlan], dict[str, str]], answer: dict[str, Any]
) -> None:
    jobs, _ = planned
    assert len(jobs) > 100
    for name, job in jobs.items():
        task = answer["tasks"][name]
        assert "error" not in task, (name, task)
        assert (task["name"], task["nodes"], task["spot"]) == (job.name, 1, True)
        assert task["clouds"] == sorted(item.cloud for item in job.choice.candidates), name
        assert task["gpus"] == sorted(json.dumps({c.accelerator: c.gpus}) for c in job.choice.candidates), name
        assert task["disk_gb"] == [job.disk_gb]
        assert task["caps"] == sorted({c.cap_usd_per_hour for c in job.choice.candidates} - {None}), name  # type: ignore[type-var]
        assert all(recovery["recover_on_exit_codes"] == list(RECOVERED) for recovery in task["recovery"])
        assert job.bucket is not None
        assert task["mounts"] == {"/prime-train-bucket": [job.bucket.name, "MOUNT_CACHED"]}
        assert task["environment"]["WANDB_RUN_ID"] == job.name
        assert tuple(task["secrets"]) == job.secrets
        assert (task["setup"], task["run"]) == job.script


@pytest.mark.parametrize("cloud", WITH_BACKUP)
def test_sky_accepts_a_job_with_a_backup_where_no_bucket_is_mounted(cloud: str, answer: dict[str, Any]) -> None:
    task, job = answer["tasks"][f"backup {cloud}"], WITH_BACKUP[cloud]
    assert "error" not in task, task
    assert (set(task["clouds"]), task["mounts"], task["spot"]) == ({cloud}, {}, True)
    assert tuple(task["secrets"]) == job.secrets
    assert (task["setup"], task["run"]) == job.script


def test_sky_reads_the_folder_of_a_command(answer: dict[str, Any], command: SkyJobPlan) -> None:
    task = answer["tasks"]["command"]
    assert "error" not in task, task
    assert (task["workdir"], task["gpus"]) == (command.workdir, ['{"H100": 2}'])
    assert (task["setup"], task["run"]) == command.script


def test_sky_copies_what_is_counted(answer: dict[str, Any], folders: list[Path]) -> None:
    for folder, left_out in zip(folders, answer["left_out"], strict=True):
        assert left_out
        assert list_left_out(folder) == frozenset(left_out)


def test_sky_reads_the_number_of_machines(answer: dict[str, Any]) -> None:
    task = answer["tasks"]["two machines"]
    assert "error" not in task, task
    assert (task["nodes"], task["run"], task["secrets"]) == (2, TWO_MACHINES.script.run, [SECRET])


def test_sky_is_no_stand_in_that_accepts_everything(answer: dict[str, Any]) -> None:
    assert "resources" in answer["tasks"]["misspelt key"]["error"]
    assert "error" in answer["tasks"]["wrong mode"]


def test_the_others_are_refused_for_the_reason_of_their_cloud(
    planned: tuple[dict[str, SkyJobPlan], dict[str, str]],
) -> None:
    jobs, refused = planned
    assert len(jobs) + len(refused) == len(presets()) * len(CLOUDS)
    for name, why in refused.items():
        preset, cloud = name.split()
        if preset == "serve":
            assert why == "it serves a model, and trains nothing"
        elif preset in NEED_A_FOLDER:
            assert "it is not in the cache of huggingface_hub" in why, (name, why)
        elif cloud in REFUSED:
            assert why == REFUSED[cloud], name
        else:
            assert why.startswith("no spot machine with"), (name, why)
    assert not [name for name in jobs if name.split()[1] in REFUSED]


def test_the_table_of_features_is_that_of_the_package(answer: dict[str, Any]) -> None:
    compared = 0
    for name, cloud in clouds().items():
        lacking = answer["clouds"].get(name)
        if lacking is None or name == "kubernetes":
            continue
        compared += 1
        for field, feature in _FEATURES.items():
            assert getattr(cloud, field) == (feature not in lacking), (name, field)
    assert compared >= 15


def test_sky_reads_the_arguments_that_it_gets(answer: dict[str, Any]) -> None:
    launch, queue, once, follow, cancel = answer["arguments"]
    assert (launch["name"], launch["entrypoint"], launch["detach_run"], launch["yes"]) == (
        "a",
        ["job.yaml"],
        True,
        True,
    )
    assert launch["secret"] == [["WANDB_API_KEY", "of the environment"]]
    assert (queue["all"], queue["all_users"], queue["output_format"]) == (True, True, "json")
    assert ("follow" in once, follow["follow"]) == (False, True)
    assert (cancel["job_ids"], cancel["yes"]) == ([7], True)
