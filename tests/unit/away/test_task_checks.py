"""A planned task has none of the faults that SkyPilot accepts, and each such fault would be found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from prime_train.away.sky import task
from prime_train.away.sky.commands import clouds
from tests.unit.away.plans import CLOUDS, plan
from tests.unit.away.task_checks import check_task

Task = dict[str, Any]


@pytest.fixture(scope="module")
def good() -> Task:
    return task.document(plan("h100-80gb", "nebius"))


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure", "nebius", "primeintellect", "auto"])
def test_a_planned_task_has_no_fault(cloud: str) -> None:
    assert check_task(task.document(plan("h100-80gb", cloud))) == ()


def _entries(task: Task) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = task["resources"]["ordered"]
    return found


def _misspelt_gpu(task: Task) -> None:
    _entries(task)[0]["accelerators"] = "H1OO:8"


def _gpu_of_another_cloud(task: Task) -> None:
    _entries(task)[0]["accelerators"] = {"RTX4090": 1}


def _strategy(task: Task) -> None:
    task["resources"]["job_recovery"]["strategy"] = "EAGER_NEXT_REGOIN"


def _recovers_a_config_error(task: Task) -> None:
    task["resources"]["job_recovery"]["recover_on_exit_codes"] = [75, 2]


def _recovers_a_failed_run(task: Task) -> None:
    task["resources"]["job_recovery"]["recover_on_exit_codes"] = 5


def _no_spot(task: Task) -> None:
    _entries(task)[0]["infra"] = "lambda/us-east-1"


def _no_mount(task: Task) -> None:
    _entries(task)[0].update(infra="vast", accelerators="H100:8")


def _unknown_cloud(task: Task) -> None:
    _entries(task)[0]["infra"] = "nebiuss"


def _several_machines(task: Task) -> None:
    task["num_nodes"] = 2
    _entries(task)[0].update(infra="primeintellect")


def _image(task: Task) -> None:
    _entries(task)[0].update(infra="primeintellect", image_id="docker:ubuntu:24.04")


def _bucket(task: Task) -> None:
    task["file_mounts"]["/prime-train-bucket"]["name"] = "My_Bucket"


def _transfers(task: Task) -> None:
    task["file_mounts"]["/prime-train-bucket"]["config"]["mount_cached"]["transfers"] = 4


def _null_secret(task: Task) -> None:
    task["secrets"] = {"WANDB_API_KEY": None}


def _written_secret(task: Task) -> None:
    task["secrets"] = {"WANDB_API_KEY": "0123456789abcdef"}


def _secret_in_envs(task: Task) -> None:
    task["envs"]["HF_TOKEN"] = "0123456789abcdef"


def _secret_in_script(task: Task) -> None:
    task["run"] += "export X=ghp_" + "a" * 36


def _name(task: Task) -> None:
    task["name"] = "two words"


@pytest.mark.parametrize(
    ("break_task", "where", "named"),
    [
        (_misspelt_gpu, "resources.ordered[0].accelerators", "H100"),
        (_gpu_of_another_cloud, "resources.ordered[0].accelerators", "vast"),
        (_strategy, "resources.job_recovery.strategy", "EAGER_NEXT_REGION"),
        (_recovers_a_config_error, "resources.job_recovery.recover_on_exit_codes", "[2] are recovered"),
        (_recovers_a_failed_run, "resources.job_recovery.recover_on_exit_codes", "[5] are recovered"),
        (_no_spot, "resources.ordered[0].use_spot", "nebius"),
        (_no_mount, "file_mounts./prime-train-bucket", "[prime_train.backup]"),
        (_unknown_cloud, "resources.ordered[0].infra", "nebius"),
        (_several_machines, "num_nodes", "cannot join 2 machines"),
        (_image, "resources.ordered[0].image_id", "no container image"),
        (_bucket, "file_mounts./prime-train-bucket.name", "lower-case"),
        (_transfers, "file_mounts./prime-train-bucket.config.mount_cached.transfers", "transfers: 1"),
        (_null_secret, "secrets.WANDB_API_KEY", "drops"),
        (_written_secret, "secrets.WANDB_API_KEY", "--secret WANDB_API_KEY"),
        (_secret_in_envs, "envs.HF_TOKEN", "--secret HF_TOKEN"),
        (_secret_in_script, "run", "a secret"),
        (_name, "name", "letters"),
    ],
)
def test_a_fault_is_found_where_it_is(good: Task, break_task: Callable[[Task], None], where: str, named: str) -> None:
    task = copy.deepcopy(good)
    break_task(task)
    found = [fault for fault in check_task(task) if fault.where == where]
    assert found, check_task(task)
    assert any(named in " ".join(fault) for fault in found)


def test_the_clouds_of_the_matrix_are_known() -> None:
    assert set(CLOUDS) - {"auto"} <= set(clouds())
