"""SkyPilot tasks: the buckets and folders that they mount, and what a spot machine loses. Reads no bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from prime_train.config.foreign.follow import exists
from prime_train.config.foreign.values import ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.foreign.sky_tasks import script_of, table_of, tasks_of
from prime_train.rules.rule import file_rule
from prime_train.toml.document import KeyPath

_TRAINS = re.compile(
    r"\b(torchrun|accelerate launch|deepspeed|axolotl|llamafactory-cli|swift|tune run"
    r"|\w*(?:train|finetune|sft|grpo|dpo)\w*(?:\.py|\.sh)?)\b"
)
_UPLOADS = re.compile(
    r"\b(aws s3|gsutil|gcloud storage|rclone|azcopy|(?:hf|huggingface-cli) upload)\b|push_to_hub|hub_model_id|\w://"
)
_OUTPUT = re.compile(
    r"--(?:out|output|output[_-]dir|out[_-]dir|save|save[_-]dir|checkpoint[_-](?:dir|path)|ckpt[_-](?:dir|path))[= ]+"
    r"[\"']?([^\s\"'\\]+)"
)
_WITHOUT_BUCKETS = frozenset({"lambda", "runpod", "vast", "paperspace", "fluidstack", "cudo", "hyperbolic"})
_LASTING = frozenset({"MOUNT", "MOUNT_CACHED"})
_SMALL_DISK_GB = (
    150  # the image and the packages of a training take 60; the cache needs a checkpoint or two beside them
)


class TaskMount(NamedTuple):
    """An entry of file_mounts. `mode` is "" where the file leaves it open; a plain path or address is copied once."""

    key: KeyPath
    path: str
    sources: tuple[str, ...]
    mode: str


@file_rule("SKT001", Severity.WARNING)
def mounts_what_is_not_there(reading: Reading) -> Iterator[Fault]:
    """A local source of `file_mounts`, and `workdir`, must exist where the task is submitted.

    SkyPilot refuses the task where it is submitted: it uploads the source before it starts a machine

    Source: skypilot, sky/task.py (file mounts and workdir); skypilot#2503.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        file_mounts:
          /data: ./no-such-folder
        run: python train.py
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        file_mounts:
          /data: ./data.txt
        run: python train.py
        # file data.txt
        text
    """
    for task in tasks_of(reading):
        sources = [(mount.key, source) for mount in _mounts(task) for source in mount.sources]
        workdir = task.values.get("workdir")
        sources += [((*task.at, "workdir"), workdir)] if isinstance(workdir, str) else []
        for key, source in sources:
            if "://" not in source and exists(source, task.document.path) is False:
                fix = "make it, correct the path, or submit from the folder that it is relative to"
                yield Fault("SKT001", key, f"{source} does not exist here", fix, document=task.document)


@file_rule("SKT004", Severity.WARNING)
def spot_job_without_a_bucket(reading: Reading) -> Iterator[Fault]:
    """A training on spot machines needs a bucket that holds what it saves.

    the disk goes with the machine: after each preemption the training begins at step 0, and pays for it again

    A mount with mode COPY only brings files to the machine. A task that uploads by itself, or that has `volumes`, is
    not judged.

    Source: docs.skypilot.co, managed jobs (checkpointing and recovery); skypilot#1264; axolotl#3948.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: H100:8, use_spot: true}
        file_mounts:
          /data: {source: gs://a-bucket/data, mode: COPY}
        run: python train.py --out ./checkpoints
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8, use_spot: true}
        file_mounts:
          /checkpoints: {name: a-bucket, mode: MOUNT_CACHED}
        run: python train.py --out /checkpoints/run
    """
    for task in tasks_of(reading):
        spot = _spot_key(task)
        run = script_of(task, "run")
        keeps_itself = task.values.get("volumes") or task.values.get("service") or _UPLOADS.search(run)
        if spot is None or keeps_itself or not _TRAINS.search(run):
            continue
        mounts = list(_mounts(task))
        lasting = [mount for mount in mounts if mount.mode in _LASTING]
        output = _OUTPUT.search(run)
        if any(not mount.mode for mount in mounts):
            continue
        if not lasting:
            what = "no mounted bucket holds the checkpoints of a spot job"
        elif (
            output is not None and output[1].startswith("/") and not any(_holds(mount, output[1]) for mount in lasting)
        ):
            what = f"{output[1]}, where the run saves, is in no mounted bucket of a spot job"
        else:
            continue
        fix = "mount a bucket in file_mounts with mode: MOUNT_CACHED, and save below its folder"
        yield Fault("SKT004", spot, what, fix, document=task.document)


@file_rule("SKT005", Severity.WARNING)
def cache_on_a_small_disk(reading: Reading) -> Iterator[Fault]:
    """A bucket with mode MOUNT_CACHED needs a disk that holds its checkpoints too.

    what is saved waits on the disk until it is uploaded, so checkpoints fill a small disk and end the run

    Source: docs.skypilot.co, cloud buckets (MOUNT_CACHED); skypilot PR#5100; axolotl#3948.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: H100:8, disk_size: 100}
        file_mounts:
          /checkpoints: {name: a-bucket, mode: MOUNT_CACHED}
        run: python train.py --out /checkpoints/run
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8, disk_size: 500}
        file_mounts:
          /checkpoints: {name: a-bucket, mode: MOUNT_CACHED}
        run: python train.py --out /checkpoints/run
    """
    for task in tasks_of(reading):
        disk_gb = table_of(task.values.get("resources")).get("disk_size")
        cached = any(mount.mode == "MOUNT_CACHED" for mount in _mounts(task))
        if cached and isinstance(disk_gb, int) and disk_gb < _SMALL_DISK_GB and _TRAINS.search(script_of(task, "run")):
            what = f"the disk has {disk_gb} GB, and the cache of a bucket is on it"
            fix = "resources.disk_size: the image, and three checkpoints beside it"
            yield Fault("SKT005", (*task.at, "resources", "disk_size"), what, fix, document=task.document)


@file_rule("SKT006", Severity.NOTE)
def saves_straight_into_a_bucket(reading: Reading) -> Iterator[Fault]:
    """Large checkpoints are better saved into a bucket with mode MOUNT_CACHED than MOUNT.

    with MOUNT each write goes over the network before the training goes on, so a save takes minutes

    Source: docs.skypilot.co, cloud buckets; skypilot#1862.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        file_mounts:
          /checkpoints: {name: a-bucket, mode: MOUNT}
        run: torchrun --nproc_per_node 8 train.py --output_dir /checkpoints/run
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        file_mounts:
          /checkpoints: {name: a-bucket, mode: MOUNT_CACHED}
        run: torchrun --nproc_per_node 8 train.py --output_dir /checkpoints/run
    """
    for task in tasks_of(reading):
        run = script_of(task, "run")
        output = _OUTPUT.search(run)
        for mount in _mounts(task):
            if output is not None and mount.mode == "MOUNT" and _holds(mount, output[1]) and _TRAINS.search(run):
                what = f"the run saves into {mount.path}, which is mounted without a cache"
                yield Fault("SKT006", mount.key, what, "mode: MOUNT_CACHED", document=task.document)


@file_rule("SKT009", Severity.WARNING)
def local_files_of_a_managed_job(reading: Reading) -> Iterator[Fault]:
    """Local files of a managed job go through a bucket, which some clouds do not have.

    the job comes back on another machine, so SkyPilot uploads workdir and local sources to a bucket, and refuses
    the job without a cloud that has one

    A task with `job_recovery` that names a cloud without buckets is judged.

    Source: docs.skypilot.co, managed jobs, intermediate storage; skypilot#788, #1225.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: H100:8, cloud: lambda, job_recovery: FAILOVER}
        workdir: .
        run: torchrun --nproc_per_node 8 train.py
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8, cloud: aws, job_recovery: FAILOVER}
        workdir: .
        run: torchrun --nproc_per_node 8 train.py
    """
    for task in tasks_of(reading):
        resources = task.values.get("resources")
        resources = resources if isinstance(resources, dict) else {}
        cloud = str(resources.get("cloud") or str(resources.get("infra", "")).partition("/")[0]).lower()
        is_managed = bool(resources.get("job_recovery") or resources.get("spot_recovery"))
        local = [mount.path for mount in _mounts(task) if any("://" not in source for source in mount.sources)]
        local += ["workdir"] if isinstance(task.values.get("workdir"), str) else []
        if is_managed and cloud in _WITHOUT_BUCKETS and local:
            what = f"{cloud} has no buckets, and {', '.join(local[:3])} of a managed job needs one"
            fix = "let `sky check` enable a cloud with buckets too, or mount a bucket"
            yield Fault("SKT009", (*task.at, "resources"), what, fix, document=task.document)


def _mounts(task: ForeignPart) -> Iterator[TaskMount]:
    for path, value in table_of(task.values.get("file_mounts")).items():
        key = (*task.at, "file_mounts", path)
        if isinstance(value, str):
            yield TaskMount(key, path, (value,), "COPY")
        elif isinstance(value, dict):
            source, mode = value.get("source"), value.get("mode", "MOUNT")
            sources = tuple(one for one in (source if isinstance(source, list) else [source]) if isinstance(one, str))
            yield TaskMount(key, path, sources, mode.upper() if isinstance(mode, str) else "")
        else:
            yield TaskMount(key, path, (), "")


def _holds(mount: TaskMount, folder: str) -> bool:
    return f"{folder}/".startswith(f"{mount.path.rstrip('/')}/")


def _spot_key(task: ForeignPart) -> KeyPath | None:
    """The key that asks for spot machines, in `resources` or one of its alternatives."""
    resources = table_of(task.values.get("resources"))
    if resources.get("use_spot") is True:
        return (*task.at, "resources", "use_spot")
    for name in ("any_of", "ordered"):
        found = resources.get(name)
        for number, one in enumerate(found if isinstance(found, list) else ()):
            if table_of(one).get("use_spot") is True:
                return (*task.at, "resources", name, number, "use_spot")
    return None
