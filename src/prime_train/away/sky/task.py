"""Turns a run into a SkyPilot task with its setup and run scripts. Pure; `commands.py` hands the text to `sky`.

Every value from outside is quoted for the shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train import __version__
from prime_train.away.sky.candidates import Candidate, CandidateChoice
from prime_train.away.sky.command_script import command_options, install_command, link_checkpoints, write_text
from prime_train.away.sky.job_end import ELSEWHERE, RECOVERED
from prime_train.away.sky.refusals import list_downloads
from prime_train.core.errors import ExitCode
from prime_train.programs.prime_rl.install import list_install_lines
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server, prime_rl_of, program_name
from prime_train.spec.decoder_size import Architecture

BUCKET_VARIABLE = "PRIME_TRAIN_BUCKET"  # the folder of the bucket on the machine
NAME_VARIABLE = "PRIME_TRAIN_JOB"
BUCKET_FOLDER = "/prime-train-bucket"
CONFIG = "run.toml"
_FOLDER = '"$HOME/prime-train-job"'
_BIN = "$HOME/prime-train-env/bin"
_UV = "0.9.30"  # PyPI, 2026-11: its installer is kept for each version
_PYTHON = "3.12"
_VLLM = "0.32.0"  # the version whose arguments are in registry/vllm_arguments.json
_SYSTEM_GB = 60  # the image, CUDA, torch and prime-rl's packages: 25 GB measured in an environment with vLLM, doubled
_SMALLEST_DISK_GB = 100
_LARGEST_DISK_GB = 16_000  # AWS gp3 has at most 16 TiB
COMMAND_DISK_GB = 256  # the default of SkyPilot 0.14: what a command saves is not known
_STATE_BYTES = 12  # per parameter in fp32: weight and two moments, as in rules/training/run_needs.py
_GB = 10**9
STRATEGY = "EAGER_NEXT_REGION"


class InstalledPackage(NamedTuple):
    """What a machine installs of this package: extras besides the usual ones, and an address instead of the index."""

    extras: tuple[str, ...] = ()
    url: str | None = None


THIS_VERSION = InstalledPackage()


class Script(NamedTuple):
    """The scripts of a task. `setup` runs on each new machine, `run` after it."""

    setup: str
    run: str


def write_script(
    run: RunSpec, config: str, secrets: tuple[str, ...], package: InstalledPackage = THIS_VERSION, *, mounts: bool
) -> Script:
    """The scripts for a run whose final config text is `config`.

    The config is part of the script, so that a recovery on another machine uses the same text, without a copy in a
    bucket of its own or a file on the submitting machine. `mounts`: the bucket is a folder of the machine.
    """
    return Script(_setup(run, secrets, package), _run(run, config, mounts=mounts))


def _setup(run: RunSpec, secrets: tuple[str, ...], package: InstalledPackage) -> str:
    # Secrets come before anything is installed, because the machine costs money from here on.
    lines = ["set -euo pipefail", *map(_require_secret, secrets)]
    lines += [
        f'curl -LsSf https://astral.sh/uv/{_UV}/install.sh | env UV_INSTALL_DIR="$HOME/.local/bin" sh',
        'export PATH="$HOME/.local/bin:$PATH"',
    ]
    lines += _install(run, package)
    downloads = list_downloads(run)
    if downloads:
        lines += [f"mkdir -p {_FOLDER}", f"cd {_FOLDER}"]
        lines += [f'"{_BIN}/hf" download {shlex.quote(name)} --local-dir {shlex.quote(name)}' for name in downloads]
    return "\n".join(lines) + "\n"


def _require_secret(name: str) -> str:
    text = f"error: the secret {name} is not set: sky jobs launch --secret {name}"
    return f'[ -n "${{{name}:-}}" ] || {{ echo "{text}" >&2; exit {ExitCode.OUT_OF_REACH:d}; }}'


def _require(run: RunSpec, package: InstalledPackage, *extras: str) -> str:
    wanted = (*extras, *package.extras, *(("wandb",) if run.prime_train.wandb.project is not None else ()))
    named = f"[{','.join(wanted)}]" if wanted else ""
    return shlex.quote(f"prime-train{named}" + (f" @ {package.url}" if package.url else f"=={__version__}"))


def _install(run: RunSpec, package: InstalledPackage) -> list[str]:
    match program_name(run):
        case "prime_rl":
            return _install_prime_rl(run, package)
        case "command" if run.command is not None:
            own = install_command(run.command, run.prime_train.spot.setup, _PYTHON)
            return [*_install_here(_require(run, package)), *own]
    return _install_bundled(run, package)


def _install_bundled(run: RunSpec, package: InstalledPackage) -> list[str]:
    vllm = [f"vllm=={_VLLM}"] if launched_server(run) is not None else []
    machines = ("machines",) if run.parallel.machines > 1 else ()
    return _install_here(" ".join([_require(run, package, "train", *machines), *vllm]))


def _install_here(packages: str) -> list[str]:
    return [
        f'[ -x "{_BIN}/python" ] || uv venv --python {_PYTHON} "$HOME/prime-train-env"',
        f'uv pip install --python "{_BIN}/python" {packages}',
    ]


def _install_prime_rl(run: RunSpec, package: InstalledPackage) -> list[str]:
    """prime-rl with its own lock file, and prime-train beside it."""
    return [
        *list_install_lines(prime_rl_of(run).launch.generation, '"$HOME/prime-rl"'),
        f'uv pip install --python "$HOME/prime-rl/.venv/bin/python" {_require(run, package)}',
        'ln -sfn "$HOME/prime-rl/.venv" "$HOME/prime-train-env"',
    ]


def _run(run: RunSpec, config: str, *, mounts: bool) -> str:
    # A command may start with uv, or with a program that its setup installed for the user.
    programs = f"{_BIN}:$HOME/.local/bin" if run.command is not None else _BIN
    lines = ["set -euo pipefail", f'export PATH="{programs}:$PATH"', f"mkdir -p {_FOLDER}", f"cd {_FOLDER}"]
    if mounts:  # what the run writes is in the bucket; the code, caches and models are on the machine's disk
        opened = [f'mkdir -p "${BUCKET_VARIABLE}/runs"', f'ln -sfn "${BUCKET_VARIABLE}/runs" runs']
        # A mark of another host protects its checkpoint for ever, and that host is gone.
        opened += [f'find "${BUCKET_VARIABLE}" -name "IN_USE.*" -type f -delete']
        # Other machines send their parts of a checkpoint to machine 0, and write nothing that outlives them.
        only_0 = run.parallel.machines > 1
        lines += [_ON_MACHINE_0, *opened, "fi"] if only_0 else opened
    if mounts and run.command is not None:
        lines += link_checkpoints(run.command, f"${BUCKET_VARIABLE}/checkpoints/${NAME_VARIABLE}")
    lines += write_text(CONFIG, config, "PRIME_TRAIN_CONFIG")
    words = f'prime-train run {CONFIG} --resume auto --run-name "${NAME_VARIABLE}"'
    if run.prime_rl is None:
        words += " --set run.dir=runs"
        words += command_options(run.command) if run.command is not None else ""
    elif mounts:  # an absolute path that is the same on each machine, because prime-rl's state has it
        words += f' --set output_dir="${BUCKET_VARIABLE}/outputs"'
    folder = f'"runs/${NAME_VARIABLE}"'
    if mounts:  # elsewhere nothing of the run is here before it begins
        # No other end of it ends the job: a machine that it cannot judge is used.
        refused = f"[ $? != {ELSEWHERE} ] || exit {ELSEWHERE}"
        lines.append(f"python -P -m prime_train.away.sky.condemned {folder} || {refused}")
    return "\n".join(lines) + "\n" + _SUPERVISED.format(command=words, folder=folder)


_ON_MACHINE_0 = 'if [ "${SKYPILOT_NODE_RANK:-0}" = 0 ]; then'

# bash hands on a signal only if it waits for a background child; `wait` returns early then, so it is repeated.
_SUPERVISED = f"""{{command}} &
child=$!
trap 'kill -TERM "$child" 2> /dev/null || true' TERM INT
code=0
wait "$child" || code=$?
while kill -0 "$child" 2> /dev/null; do code=0; wait "$child" || code=$?; done
# {ELSEWHERE}: the hardware failed, and another machine continues the run.
exec python -P -m prime_train.away.sky.job_end {{folder}} "$code"
"""


class Bucket(NamedTuple):
    """The bucket that SkyPilot mounts as a folder. It outlives the job."""

    name: str
    store: str


class SkyJobPlan(NamedTuple):
    """A run as a job of a cloud. `name` is the id of the run: in the queue, in the bucket and at W&B.

    `bucket` is None if the run's own backup carries its checkpoints. `secrets`: names of variables, never values.
    `copies`: (path on the job's machine, file or folder of this machine). `workdir`: the folder of a command; "" for
    any other run.
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
    workdir: str = ""


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
    if job.workdir:
        task["workdir"] = job.workdir
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
        "job_recovery": {"strategy": STRATEGY, "max_restarts_on_errors": 0, "recover_on_exit_codes": list(RECOVERED)},
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
