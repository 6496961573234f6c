"""`prime-train run CONFIG --spot`: writes the run as a spot job, submits it with `sky`, and follows it."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import tomli
import typer

from prime_train import __version__
from prime_train.away.sky import job_plan, task
from prime_train.away.sky.candidates import CandidateChoice, RentedGpus
from prime_train.away.sky.carried import find_carried
from prime_train.away.sky.commands import show_launch
from prime_train.away.sky.job import SkyRun
from prime_train.away.sky.record import JobRecord, find_record, job_name, task_path
from prime_train.away.sky.refusals import find_paths
from prime_train.cli.estimate import inputs
from prime_train.cli.jobs import follow
from prime_train.cli.run.preflight import Command, check_config
from prime_train.config import detect
from prime_train.core import installation
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import make_folder, write_atomic
from prime_train.core.units import format_usd
from prime_train.estimate.cost.run_cost import shipped_rates
from prime_train.estimate.hardware import hardware_from_name
from prime_train.prices import store
from prime_train.spec import RunSpec
from prime_train.spec.answers import program_name
from prime_train.views.run.runs import RUNS

Spot = Annotated[
    bool, typer.Option("--spot", help="Run on rented spot machines, through SkyPilot; asks before it pays.")
]
Cloud = Annotated[
    str | None, typer.Option("--cloud", metavar="NAME|auto", help="--spot: the cloud; auto = the cheapest that fit.")
]
Bucket = Annotated[
    str | None,
    typer.Option(
        "--bucket", metavar="NAME", envvar="PRIME_TRAIN_SPOT_BUCKET", help="--spot: bucket of the checkpoints."
    ),
]
MaxPrice = Annotated[
    float | None, typer.Option("--max-usd-per-hour", min=0.01, help="--spot: highest price of a machine.")
]
Package = Annotated[
    str | None,
    typer.Option(
        "--package",
        metavar="URL",
        envvar="PRIME_TRAIN_SPOT_PACKAGE",
        help="--spot: address of prime-train for the machines, such as git+https://HOST/REPOSITORY@COMMIT or a wheel.",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus", metavar="2xh100-80gb", help="--spot with the command of a trainer: the GPUs of its machine."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="--spot: do not ask before machines are rented.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="Run in the background; --spot: submit the job and do not follow it.")
]
Output = Annotated[
    str | None, typer.Option("--output", metavar="FILE", help="--spot, --slurm: write the job to this file.")
]


class SpotOptions(NamedTuple):
    """The options of a job on rented machines, as given."""

    cloud: str | None = None  # None counts as "auto"
    output: str | None = None
    bucket: str | None = None
    max_usd_per_hour: float | None = None
    package_url: str | None = None
    yes: bool = False
    detach: bool = False
    dry_run: bool = False
    resume: str = "auto"
    as_json: bool = False
    gpus: str | None = None

    def refuse_without_spot(self) -> None:
        """Raise UserError for an option of such a job without --spot. A bucket may come from the environment."""
        values: dict[str, object] = {"--cloud": self.cloud, "--max-usd-per-hour": self.max_usd_per_hour}
        values |= {"--yes": self.yes, "--gpus": self.gpus}
        for name, value in values.items():
            if value:
                raise UserError(
                    what=f"{name} is an option of a job on rented machines",
                    where=name,
                    why="without --spot the run starts on this machine",
                    fix=f"add --spot, or leave {name} out",
                )


_SALT_CHARACTERS = 10
_MACHINE_ID = Path("/etc/machine-id")


class Planned(NamedTuple):
    """A job, and the text of its task file."""

    job: task.SkyJobPlan
    text: str
    run: RunSpec
    notes: tuple[str, ...] = ()


def run_spot(command: Command, options: SpotOptions) -> ExitCode:
    """Plan the job; print, write or submit it. Returns the exit code of the command."""
    if options.resume != "auto":
        raise UserError(
            what=f"--resume {options.resume} and --spot",
            where="prime-train run",
            why="the job resumes on each new machine, and would start over there again and again",
            fix="leave --resume out; another --run-name starts another run",
        )
    folder = Path.cwd() / RUNS
    planned = plan(command, options, folder)
    _show_plan(planned, options)
    if options.output is not None:
        _write(Path(options.output), planned.text)
        typer.echo(f"written to {options.output}", err=True)
    if options.dry_run or options.output is not None:
        if options.output is None:
            typer.echo(planned.text, nl=False)
        return ExitCode.OK
    return _submit(planned, options, folder)


def plan(command: Command, options: SpotOptions, folder: Path) -> Planned:
    """The job of a config. Raises UserError for what cannot work; exits with 1 if the config has errors."""
    checked = check_config(command, validate=False, unchecked="")
    gpus = _read_gpus(checked.spec, options.gpus)
    record = find_record(folder, job_name(checked.spec.run.name))  # the checkpoints are in the bucket that it names
    request = job_plan.JobRequest(
        cloud=options.cloud or "auto",
        bucket=options.bucket or (record.bucket if record is not None else "") or None,
        max_usd_per_hour=options.max_usd_per_hour,
        salt=_salt(),
        tokens=_find_tokens(checked.spec),
        package_url=options.package_url or installation.package_url(),
        gpus=gpus,
    )
    run, path = checked.verdict.run, checked.verdict.path
    assert run is not None, "check_config exits without a run"
    run = replace(run, run=replace(run.run, name=checked.spec.run.name))  # without the folders of this machine
    shape, notes = None, tuple[str, ...]()
    if run.command is None:
        shape = inputs.find_shape(checked.spec, detect.read(checked.text, path), inputs.EstimateOptions(path))
    else:
        from prime_train.away.sky.command_job import prepare  # here, because most runs have no command

        with_folder = replace(run, command=checked.spec.command)
        run, notes = prepare(with_folder, gpus, path, submitted=record is not None)
    values = tomli.loads(checked.text)
    carried = find_carried(find_paths(checked.spec, values), Path.cwd())
    config = job_plan.PlannedConfig(checked.text, values, path, shape, carried)
    job_plan.check_portable(run, config, os.environ)
    prices = store.load(store.today())
    job = job_plan.plan_job(run, config, request, prices, shipped_rates())
    return Planned(job, task.to_yaml(task.document(job), _comments(job)), run, notes)


def _read_gpus(run: RunSpec, text: str | None) -> RentedGpus | None:
    """The GPUs of --gpus. Raises UserError for an unknown name, and for any run but that of a command."""
    if text is None:
        return None
    if run.command is None:
        raise UserError(
            what="--gpus is for the command of another trainer",
            where=f"--gpus {text}",
            why="the estimate chooses the GPUs of this run, and its config their number",
            fix="leave --gpus out; --cloud and --max-usd-per-hour limit the choice",
        )
    found = hardware_from_name(text, "run --spot --gpus")
    return RentedGpus(found.gpus, found.id)


def _find_tokens(run: RunSpec) -> tuple[str, ...]:
    """Names of logins of this environment that the trainer may use; a command reports to W&B by itself."""
    names = ("HF_TOKEN",) if run.command is None else ("HF_TOKEN", "WANDB_API_KEY")
    return tuple(name for name in names if os.environ.get(name))


def _salt() -> str:
    """A part of the default bucket's name: the same for this user on this machine, and hard to guess elsewhere."""
    try:
        machine = _MACHINE_ID.read_text(encoding="utf-8")
    except OSError:
        machine = os.uname().nodename
    return hashlib.sha256(f"prime-train bucket {machine} {os.getuid()}".encode()).hexdigest()[:_SALT_CHARACTERS]


def _comments(job: task.SkyJobPlan) -> tuple[str, ...]:
    return (
        f"The run {job.name} as a spot job of SkyPilot 0.14, written by prime-train run --spot.",
        f"Start: {show_launch(job.name, Path('FILE'), job.secrets)}",
        "It continues by itself on another machine. The same name continues the same run.",
    )


def _show_plan(planned: Planned, options: SpotOptions) -> None:
    job = planned.job
    for candidate in job.choice.candidates:
        price = "price not known" if candidate.usd_per_hour is None else f"{format_usd(candidate.usd_per_hour)} an hour"
        whole = "" if candidate.run_usd is None else f", about {format_usd(candidate.run_usd)} for the whole run"
        cap_usd = candidate.cap_usd_per_hour
        cap = "" if cap_usd is None else f", at most {format_usd(cap_usd)} an hour"
        typer.echo(f"{candidate.cloud}: {candidate.gpus}x {candidate.accelerator}, {price}{whole}{cap}", err=True)
    typer.echo("prices are those of `prime-train prices`; the live price is paid, up to the limit", err=True)
    for note in planned.notes:
        typer.echo(note, err=True)
    for why, count in job.choice.left_out:
        typer.echo(f"left out: {why} ({count})", err=True)
    for target, source in job.copies:
        typer.echo(f"copied to the job: {source}, as {target}", err=True)
    if job.bucket is not None:
        typer.echo(f"checkpoints: bucket {job.bucket.name} ({job.bucket.store}), which outlives the job", err=True)
        if program_name(planned.run) == "prime_rl":
            why = "[prime_train.backup] uploads complete checkpoints alone"
            typer.echo(f"note: the bucket also gets the weights that prime-rl broadcasts in each step; {why}", err=True)
    else:
        typer.echo("checkpoints: the backup of the config", err=True)
    if options.package_url is None and installation.is_local():
        why = "this one was installed from a folder, a file or with a login of this machine"
        typer.echo(f"note: the job installs prime-train=={__version__} from the package index, because {why}", err=True)
        typer.echo(
            "      if that version is not there, give its address: --package git+https://HOST/REPOSITORY@COMMIT",
            err=True,
        )


def _write(path: Path, text: str) -> None:
    try:
        write_atomic(path, text)
    except OSError as error:
        raise UserError(
            what=f"it cannot be written: {error.strerror}",
            where=str(path),
            why="`sky` reads the job from a file",
            fix="--output FILE in a folder that exists and that you can write to",
        ) from None


def _submit(planned: Planned, options: SpotOptions, folder: Path) -> ExitCode:
    job, file = planned.job, task_path(folder, planned.job.name)
    make_folder(file.parent)
    _write(file, planned.text)

    def confirm() -> None:
        _require_named_bucket(job, options, folder)
        _confirm(job.choice, options)
        typer.echo(f"submitting {job.name}", err=True)

    bucket = job.bucket.name if job.bucket is not None else ""
    record = JobRecord(job.name, None, str(file), bucket, planned.run.run.max_steps, job.choice.candidates)
    submitted = SkyRun(record, folder, job.secrets, confirm)
    submitted.submit()
    if options.detach:
        typer.echo(f"{job.name} is submitted: prime-train status {job.name}", err=True)
        return ExitCode.OK
    return follow(submitted, time.sleep, as_json=options.as_json)


def _require_named_bucket(job: task.SkyJobPlan, options: SpotOptions, folder: Path) -> None:
    """Raise UserError where the default bucket would be another one than that of the first submission."""
    if job.bucket is None or options.bucket or find_record(folder, job.name) or not os.environ.get("CI"):
        return
    raise UserError(
        what="no bucket is named",
        where="--bucket",
        why="the default name depends on the machine that submits, so a job of CI would start over in an empty bucket",
        fix="--bucket NAME, or PRIME_TRAIN_SPOT_BUCKET=NAME; the first submission printed the name",
    )


def _confirm(choice: CandidateChoice, options: SpotOptions) -> None:
    """Ask before money is spent. Raises UserError without a terminal, Abort if the answer is no."""
    if options.yes:
        return
    caps = [candidate.cap_usd_per_hour for candidate in choice.candidates if candidate.cap_usd_per_hour is not None]
    most = f"at most {format_usd(max(caps))} an hour" if caps else "at a price that is not known"
    if not sys.stdin.isatty():
        raise UserError(
            what="there is no terminal to ask on",
            where="prime-train run --spot",
            why=f"it rents machines, {most}, until the run ends",
            fix="--yes, or --dry-run, which rents nothing",
        )
    typer.confirm(f"rent spot machines, {most}, until the run ends?", abort=True, err=True)
