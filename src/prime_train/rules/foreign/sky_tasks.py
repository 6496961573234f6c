"""SkyPilot tasks: what is lost with a machine, or never reaches it. Judges the text of a task, reads no bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.config.foreign.follow import exists
from prime_train.config.foreign.values import ForeignPart, Open
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
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
_OF_RUN = re.compile(r"\$\{?(SKYPILOT_NODE_RANK|SKYPILOT_NODE_IPS)\b")
_COMMENT = re.compile(r"(?m)^[ \t]*#.*$")
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
    for task in _tasks(reading):
        sources = [(mount.key, source) for mount in _mounts(task) for source in mount.sources]
        workdir = task.values.get("workdir")
        sources += [((*task.at, "workdir"), workdir)] if isinstance(workdir, str) else []
        for key, source in sources:
            if "://" not in source and exists(source, task.document.path) is False:
                fix = "make it, correct the path, or submit from the folder that it is relative to"
                yield Fault("SKT001", key, f"{source} does not exist here", fix, document=task.document)


@file_rule("SKT002", Severity.NOTE)
def variable_without_a_value(reading: Reading) -> Iterator[Fault]:
    """A variable in `envs` or `secrets` without a value must be given when the task is submitted.

    SkyPilot refuses to launch a task with such a variable: null means that it is required

    Source: docs.skypilot.co, environment variables and secrets; skypilot PR#4610.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        envs: {RUN_NAME: null}
        run: python train.py --name $RUN_NAME
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        envs: {RUN_NAME: first}
        run: python train.py --name $RUN_NAME
    """
    for task in _tasks(reading):
        for table, flag in (("envs", "--env"), ("secrets", "--secret")):
            for name, value in _table(task.values.get(table)).items():
                if value is None or value == "":
                    fix = f"{flag} {name}=VALUE at sky launch, or a value here"
                    yield Fault("SKT002", (*task.at, table, name), f"{name} has no value", fix, document=task.document)


@file_rule("SKT003", Severity.WARNING)
def setup_asks_for_its_node(reading: Reading) -> Iterator[Fault]:
    """`setup` must not use SKYPILOT_NODE_RANK or SKYPILOT_NODE_IPS.

    they are set for `run` only, so in `setup` they are empty

    Source: docs.skypilot.co, environment variables; skypilot#2546, #6920.

    Bad:
        # file skypilot.yaml
        num_nodes: 2
        setup: echo $SKYPILOT_NODE_RANK > rank
        run: bash start.sh
    Good:
        # file skypilot.yaml
        num_nodes: 2
        setup: echo $SKYPILOT_SETUP_NODE_RANK > rank
        run: bash start.sh
    """
    for task in _tasks(reading):
        found = _OF_RUN.search(_script(task, "setup"))
        if found is not None:
            fix = f"${found[1].replace('SKYPILOT_', 'SKYPILOT_SETUP_')}, or do it in run"
            yield Fault("SKT003", (*task.at, "setup"), f"setup uses {found[1]}", fix, document=task.document)


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
    for task in _tasks(reading):
        spot = _spot_key(task)
        run = _script(task, "run")
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
    for task in _tasks(reading):
        disk_gb = _table(task.values.get("resources")).get("disk_size")
        cached = any(mount.mode == "MOUNT_CACHED" for mount in _mounts(task))
        if cached and isinstance(disk_gb, int) and disk_gb < _SMALL_DISK_GB and _TRAINS.search(_script(task, "run")):
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
    for task in _tasks(reading):
        run = _script(task, "run")
        output = _OUTPUT.search(run)
        for mount in _mounts(task):
            if output is not None and mount.mode == "MOUNT" and _holds(mount, output[1]) and _TRAINS.search(run):
                what = f"the run saves into {mount.path}, which is mounted without a cache"
                yield Fault("SKT006", mount.key, what, "mode: MOUNT_CACHED", document=task.document)


@file_rule("SKT007", Severity.ERROR)
def nodes_that_do_not_meet(reading: Reading) -> Iterator[Fault]:
    """A launcher in a task with several nodes must get their number.

    SkyPilot runs the same command on each node: without the number of nodes each one trains alone, from the same seed

    Source: docs.skypilot.co, distributed jobs; skypilot#255, #272.

    Bad:
        # file skypilot.yaml
        num_nodes: 2
        resources: {accelerators: H100:8}
        run: torchrun --nproc_per_node 8 train.py
    Good:
        # file skypilot.yaml
        num_nodes: 2
        resources: {accelerators: H100:8}
        run: |
          first=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
          torchrun --nnodes $SKYPILOT_NUM_NODES --node_rank $SKYPILOT_NODE_RANK --master_addr $first train.py
    """
    for task in _tasks(reading):
        nodes, run = task.values.get("num_nodes"), _script(task, "run")
        launcher = _lonely_launcher(run)
        if isinstance(nodes, int) and nodes > 1 and launcher and "SKYPILOT_NODE" not in run:
            what = f"{launcher} starts on {nodes} nodes without their number"
            fix = (
                "--nnodes $SKYPILOT_NUM_NODES --node_rank $SKYPILOT_NODE_RANK --master_addr FIRST_OF_SKYPILOT_NODE_IPS"
            )
            yield Fault("SKT007", (*task.at, "num_nodes"), what, fix, document=task.document)


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
    for task in _tasks(reading):
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


@file_rule("SKT008", Severity.ERROR)
def launcher_config_for_one_machine(reading: Reading) -> Iterator[Fault]:
    """The file of accelerate must have as many machines as the task has nodes.

    each node reads `num_machines: 1` and trains alone, as often as there are nodes

    Source: skypilot-org/skypilot@07f9af68:llm/gpt-oss-finetuning.

    Bad:
        # file skypilot.yaml
        num_nodes: 4
        resources: {accelerators: H100:8}
        run: accelerate launch --config_file fsdp.yaml train.py --node $SKYPILOT_NODE_RANK
        # file fsdp.yaml
        distributed_type: FSDP
        mixed_precision: bf16
        num_machines: 1
        num_processes: 8
        fsdp_config: {fsdp_version: 2}
    Good:
        # file skypilot.yaml
        num_nodes: 4
        resources: {accelerators: H100:8}
        run: accelerate launch --config_file fsdp.yaml --num_machines $SKYPILOT_NUM_NODES train.py
        # file fsdp.yaml
        distributed_type: FSDP
        mixed_precision: bf16
        num_machines: 1
        num_processes: 8
        fsdp_config: {fsdp_version: 2}
    """
    parts = (part for part in reading.foreign or () if part.format == "accelerate")
    files = [part.document.path for part in parts if part.values.get("num_machines") == 1]
    for task in _tasks(reading):
        nodes, run = task.values.get("num_nodes"), _script(task, "run")
        if (
            isinstance(nodes, int)
            and nodes > 1
            and files
            and "accelerate launch" in run
            and "--num_machines" not in run
        ):
            what = f"the task has {nodes} nodes, and {files[0]} has num_machines: 1"
            fix = "--num_machines $SKYPILOT_NUM_NODES --machine_rank $SKYPILOT_NODE_RANK --main_process_ip FIRST_NODE"
            yield Fault("SKT008", (*task.at, "num_nodes"), what, fix, document=task.document)


def _tasks(reading: Reading) -> Iterator[ForeignPart]:
    return (part for part in reading.foreign or () if part.format == "skypilot")


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value.text if isinstance(value, Open) else value if isinstance(value, str) else ""


def _script(task: ForeignPart, key: str) -> str:
    """The commands of a section as they are written, without lines that are comments."""
    return _COMMENT.sub("", _text(task.values.get(key))).replace("\\\n", " ")


def _mounts(task: ForeignPart) -> Iterator[TaskMount]:
    for path, value in _table(task.values.get("file_mounts")).items():
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
    resources = _table(task.values.get("resources"))
    if resources.get("use_spot") is True:
        return (*task.at, "resources", "use_spot")
    for name in ("any_of", "ordered"):
        found = resources.get(name)
        for number, one in enumerate(found if isinstance(found, list) else ()):
            if _table(one).get("use_spot") is True:
                return (*task.at, "resources", name, number, "use_spot")
    return None


def _lonely_launcher(run: str) -> str:
    """The launcher of a script that starts one without a number of machines; "" if there is none."""
    for launcher, words in (("torchrun", ("--nnodes",)), ("accelerate launch", ("--num_machines", "--config_file"))):
        at = run.find(launcher)
        if at >= 0 and not any(word in run[at:] for word in words):
            return launcher
    return ""
