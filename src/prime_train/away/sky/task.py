"""Turns a run into a SkyPilot task. Pure: no file, no network, no clock; `commands.py` hands the text to `sky`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.away.sky.candidates import Candidate, CandidateChoice
from prime_train.away.sky.job_end import RECOVERED
from prime_train.away.sky.task_script import BUCKET_FOLDER, BUCKET_VARIABLE, NAME_VARIABLE, Script
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.spec.decoder_size import Architecture

_SYSTEM_GB = 60  # the image, CUDA, torch and prime-rl's packages: 25 GB measured in an environment with vLLM, doubled
_SMALLEST_DISK_GB = 100
_LARGEST_DISK_GB = 16_000  # AWS gp3 has at most 16 TiB
_STATE_BYTES = 12  # per parameter in fp32: weight and two moments, as in rules/training/run_needs.py
_GB = 10**9
STRATEGY = "EAGER_NEXT_REGION"


class Bucket(NamedTuple):
    """The bucket that SkyPilot mounts as a folder. It outlives the job."""

    name: str
    store: str


class SkyJobPlan(NamedTuple):
    """A run as a job of a cloud. `name` is the id of the run: in the queue, in the bucket and at W&B.

    `bucket` is None if the run's own backup carries its checkpoints. `secrets`: names of variables, never values.
    `copies`: (path on the job's machine, file or folder of this machine).
    """

    name: str
    choice: CandidateChoice
    disk_gb: int
    bucket: Bucket | None
    script: Script
    secrets: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    nodes: int = 1
    copies: tuple[tuple[str, str], ...] = ()


def size_disk_gb(run: RunSpec, parameters: int) -> int:
    """GB of disk: checkpoints that are kept and the one being written, the model twice, and the system.

    The cache of a mounted bucket is on this disk, so checkpoints count with a bucket too.
    """
    parts = prime_rl_of(run)
    kept = parts.saving.keep_last if parts.saving is not None else run.checkpoint.keep_last
    checkpoints = (kept or run.checkpoint.keep_last) + 2  # one is written while another is uploaded
    needed = (_STATE_BYTES * checkpoints + 2 * 4) * parameters / _GB + _SYSTEM_GB
    rounded = -(-int(needed) // 50) * 50
    return max(_SMALLEST_DISK_GB, min(rounded, _LARGEST_DISK_GB))


def decoder_parameters(decoder: Architecture | None) -> int:
    return 0 if decoder is None else decoder.parameters


def document(job: SkyJobPlan) -> dict[str, Any]:
    """The task as SkyPilot reads it. Keys are in the order in which they are written."""
    task: dict[str, Any] = {"name": job.name}
    if job.nodes > 1:
        task["num_nodes"] = job.nodes
    task["resources"] = _resources(job)
    if job.bucket is not None:
        # One transfer at a time keeps the order of the writes, so a marker is uploaded after the files that it marks.
        mount = {"name": job.bucket.name, "store": job.bucket.store, "mode": "MOUNT_CACHED", "persistent": True}
        task["file_mounts"] = {BUCKET_FOLDER: {**mount, "config": {"mount_cached": {"transfers": 1}}}}
    if job.copies:
        task["file_mounts"] = task.get("file_mounts", {}) | dict(job.copies)
    task["envs"] = dict(_environment(job))
    if job.secrets:
        task["secrets"] = dict.fromkeys(job.secrets, "")  # `sky jobs launch --secret NAME` sets them
    task["setup"] = job.script.setup
    task["run"] = job.script.run
    return task


def _environment(job: SkyJobPlan) -> Iterator[tuple[str, str]]:
    yield NAME_VARIABLE, job.name
    if job.bucket is not None:
        yield BUCKET_VARIABLE, BUCKET_FOLDER
    yield "WANDB_RUN_ID", job.name
    yield "WANDB_RESUME", "allow"
    yield from job.environment


def _resources(job: SkyJobPlan) -> dict[str, Any]:
    entries = [_entry(candidate) for candidate in job.choice.candidates]
    shared: dict[str, Any] = {
        "use_spot": True,
        "disk_size": job.disk_gb,
        "job_recovery": {
            "strategy": STRATEGY,
            "max_restarts_on_errors": 0,
            "recover_on_exit_codes": list(RECOVERED),
        },
    }
    if len(entries) == 1:
        return {**entries[0], **shared}
    # Known prices give an order by what the whole run costs; without any SkyPilot takes the lowest price per hour.
    return {**shared, "ordered" if job.choice.has_prices else "any_of": entries}


def _entry(candidate: Candidate) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "infra": candidate.cloud if candidate.cloud != "kubernetes" else "k8s",
        "accelerators": f"{candidate.accelerator}:{candidate.gpus}",
    }
    if candidate.cap_usd_per_hour is not None:
        entry["max_hourly_cost"] = candidate.cap_usd_per_hour
    return entry


def to_yaml(task: dict[str, Any], comments: tuple[str, ...] = ()) -> str:
    """The text of a task file. Scripts are block texts, so that a person can read them."""
    import yaml  # lazy, because no other command writes YAML

    def write_text(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    writer: Any = type("Writer", (yaml.SafeDumper,), {})  # of its own, because a representer changes its class
    writer.add_representer(str, write_text)
    body: str = yaml.dump(task, Dumper=writer, sort_keys=False, allow_unicode=True, width=10_000)
    return "".join(f"# {line}\n" for line in comments) + body
