"""Plans the spot job of a run: the clouds, the machines, the disk, the bucket, the secrets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from prime_train.away.sky import refusals
from prime_train.away.sky.candidates import Candidate, Judge, Market, RentedGpus, Speed, WantedMachines, choose
from prime_train.away.sky.carried import CarriedPath
from prime_train.away.sky.commands import Accelerator, Cloud, accelerators, list_clouds
from prime_train.away.sky.record import bucket_fault, bucket_name, job_name
from prime_train.away.sky.task import COMMAND_DISK_GB, Bucket, InstalledPackage, SkyJobPlan, size_disk_gb, write_script
from prime_train.backups.settings import PROVIDERS
from prime_train.core.errors import UserError
from prime_train.core.machines import SECRET
from prime_train.core.redaction import is_secret, own_secrets
from prime_train.estimate.cost.run_cost import InterruptionRates
from prime_train.estimate.estimate import estimate
from prime_train.estimate.hardware import hardware_from_entry
from prime_train.estimate.model.shape import ModelShape
from prime_train.prices.price import Price
from prime_train.programs.prime_rl.settings import choose_interval
from prime_train.registry.gpus import gpu_peaks
from prime_train.spec import RunSpec
from prime_train.spec.answers import machine_gpus, prime_rl_of, program_name

_BF16_CAPABILITY = (8, 0)  # Ampere: CUDA programming guide, compute capabilities
_USUAL_STORE = "s3"
_BACKUP_SECRETS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "b2": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "azure": ("AZURE_STORAGE_CONNECTION_STRING",),
    "hf": ("HF_TOKEN",),
}


class JobRequest(NamedTuple):
    """What the user asks for, besides the config.

    `salt`: a part of the default bucket's name. `tokens`: names of secrets that are set here, which the job gets too.
    `package_url`: the address of prime-train for the job's machines; None for this version on the package index.
    `gpus`: those of a command; None for any other run, which has an estimate.
    """

    cloud: str
    bucket: str | None
    max_usd_per_hour: float | None
    salt: str
    tokens: tuple[str, ...] = ()
    package_url: str | None = None
    gpus: RentedGpus | None = None


class PlannedConfig(NamedTuple):
    """A config as the job gets it.

    Its final text, its values, its path for messages, the shape of its model (None for a command), and the local files
    that the job gets.
    """

    text: str
    values: Mapping[str, Any]
    path: str
    shape: ModelShape | None
    carried: tuple[CarriedPath, ...] = ()


def plan_job(
    run: RunSpec, config: PlannedConfig, request: JobRequest, prices: tuple[Price, ...], rates: InterruptionRates
) -> SkyJobPlan:
    """The job of a run. `run.run.name` is the name of the run. Raises UserError for what cannot work.

    A command is one that `command_job.prepare` returned.
    """
    if run.command is None:
        refusals.refuse_run(run, config.path, request.cloud)
    if program_name(run) == "prime_rl" and run.checkpoint.interval_steps is None:
        interval = choose_interval(run.run.max_steps)
        run = replace(run, checkpoint=replace(run.checkpoint, interval_steps=interval))
    provider = backup_provider(run)
    usable = refusals.usable_clouds(run, list_clouds(request.cloud), request.cloud, has_backup=provider is not None)
    usable = refusals.keep_reachable(usable, provider, request.cloud)
    machines = run.parallel.machines
    gpus = request.gpus.number if request.gpus is not None else machine_gpus(run) or 1
    wanted = WantedMachines(gpus // machines, run.checkpoint.interval_steps, request.max_usd_per_hour, machines)
    market = Market(usable, _list_accelerators(request.gpus), prices, rates)
    choice = choose(wanted, market, _judge_gpus(run, config.shape, gpus))
    if not choice.candidates:
        finds = run.command is None
        raise refusals.no_candidate_error(choice.left_out, request.cloud, wanted.gpus, config.path if finds else "")
    name = job_name(run.run.name)
    bucket = None if provider is not None else _bucket(name, request, choice.candidates[0], usable)
    needed = list_secrets(run, request.tokens)
    if request.package_url is not None:
        refusals.refuse_package(request.package_url)
    extras = (PROVIDERS[provider].extra,) if provider is not None else ()
    package = InstalledPackage(extras, request.package_url)
    return SkyJobPlan(
        name=name,
        choice=choice,
        disk_gb=COMMAND_DISK_GB if config.shape is None else size_disk_gb(run, config.shape.parameters),
        bucket=bucket,
        script=write_script(run, config.text, needed, package, mounts=bucket is not None),
        secrets=needed,
        nodes=machines,
        copies=tuple(dict.fromkeys((carried.target, carried.source) for carried in config.carried)),
        workdir=run.command.cwd if run.command is not None else "",
    )


def _list_accelerators(gpus: RentedGpus | None) -> tuple[Accelerator, ...]:
    return tuple(found for found in accelerators() if gpus is None or found.gpu == gpus.gpu)


def check_portable(run: RunSpec, config: PlannedConfig, environment: Mapping[str, str]) -> None:
    """Raise UserError for a config that another machine cannot use, or that holds a secret."""
    named = tuple(name for name, value in environment.items() if is_secret(name, value))
    # The job's file also has the folder of a command, and that of its checkpoints.
    folders = () if run.command is None else (run.command.cwd, run.command.checkpoints.dir)
    refusals.refuse_config("\n".join((config.text, *folders)), own_secrets(named, environment), config.path)
    refusals.refuse_setup(run.prime_train.spot.setup, config.path)
    copied = {carried.local for carried in config.carried}
    left = tuple(path for path in refusals.find_paths(run, config.values) if path not in copied)
    refusals.refuse_paths(left, config.path)


def backup_provider(run: RunSpec) -> str | None:
    """The provider of the run's own backup; None without one, or with a folder that is lost with the machine.

    Only the config counts: the defaults of `backup configure` are on this machine, and not on that of the job.
    """
    provider = run.prime_train.backup.provider
    return None if provider in ("local", "off") else provider


def list_secrets(run: RunSpec, tokens: tuple[str, ...] = ()) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_secrets(run), *tokens)))


def _secrets(run: RunSpec) -> Iterator[str]:
    parts = prime_rl_of(run)
    wandb = run.prime_train.wandb
    if (wandb.project is not None and wandb.mode == "online") or (
        parts.monitor is not None and not parts.monitor.offline
    ):
        yield "WANDB_API_KEY"
    if run.prime_train.alerts.webhook_env is not None:
        yield run.prime_train.alerts.webhook_env
    if run.parallel.machines > 1:
        yield SECRET
    yield from _BACKUP_SECRETS.get(backup_provider(run) or "", ())


def _judge_gpus(run: RunSpec, shape: ModelShape | None, gpus: int) -> Judge:
    if shape is None:  # a command: the user names the GPUs
        return lambda _: None
    known = {gpu.id: gpu for gpu in gpu_peaks()}
    needs_bf16 = run.precision.compute == "bf16" or program_name(run) == "prime_rl"

    @cache
    def judge(gpu: str) -> Speed | str:
        entry = known[gpu]
        if entry.compute_capability is None:
            return "the setup installs packages for NVIDIA GPUs"
        hardware = hardware_from_entry(entry, gpus)
        if needs_bf16 and (hardware.compute_capability or _BF16_CAPABILITY) < _BF16_CAPABILITY:
            return "the GPU has no bf16"
        try:
            estimated = estimate(run, hardware, shape)
        except UserError as error:
            return f"{gpu}: {error.what}"
        if estimated.time is None:
            return "its time cannot be estimated"
        if estimated.is_refused:
            return "the run does not fit into the memory"
        if not estimated.fits:  # a rented machine costs money before it is found too small
            return "the run only likely fits into the memory"
        return Speed(estimated.time.steps, estimated.time.step_s)

    return judge


def _bucket(name: str, request: JobRequest, first: Candidate, usable: tuple[Cloud, ...]) -> Bucket:
    """The bucket of the job: in the cloud of the cheapest machine, because reading it there is free."""
    store = next((cloud.store for cloud in usable if cloud.id == first.cloud and cloud.store), _USUAL_STORE)
    named = request.bucket or bucket_name(name, request.salt)
    if fault := bucket_fault(named, store):
        what, fix = f"{named!r} is no name of a bucket", "--bucket prime-train-checkpoints-of-me"
        raise UserError(what, "--bucket" if request.bucket else f"the run's name {name}", fault, fix)
    return Bucket(named, store)
