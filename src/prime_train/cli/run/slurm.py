"""`prime-train run CONFIG --slurm`: writes the script of a job and submits it. The run itself starts in the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import typer

from prime_train.away.slurm import commands, record, resources, script
from prime_train.away.slurm.job import SlurmRun, Submission, kept_config
from prime_train.away.slurm.record import SlurmJob
from prime_train.away.slurm.resources import CoreMemory, KnownRun, Plan
from prime_train.away.slurm.script import SlurmScript
from prime_train.cli.estimate import inputs
from prime_train.cli.run.preflight import CheckedConfig, Command, check_config
from prime_train.cli.terminal.render import json_text, labelled
from prime_train.config import detect
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.python_child import own_module
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir
from prime_train.estimate import hardware as hardware_of
from prime_train.estimate.estimate import estimate
from prime_train.estimate.model.shape import ModelShape
from prime_train.events import CheckpointSaved, read
from prime_train.facts.previous_run import read_step_times
from prime_train.programs import program_of, recorded
from prime_train.spec import RunSpec
from prime_train.supervise.launch.run_directory import find_newest_complete
from prime_train.views.text import pick

Slurm = Annotated[bool, typer.Option("--slurm", help="Submit it as a job that requeues itself at its time limit.")]
Partition = Annotated[str | None, typer.Option("--partition", metavar="NAME", help="--slurm: the partition.")]
Account = Annotated[str | None, typer.Option("--account", metavar="NAME", help="--slurm: the account.")]
TimeLimit = Annotated[
    str | None, typer.Option("--time-limit", metavar="LIMIT", help="--slurm: minutes, H:MM:SS or D-HH:MM:SS.")
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="KEY=VALUE", help="--slurm: one more option of sbatch; repeatable."),
]
SlurmGpus = Annotated[
    str | None,
    typer.Option("--slurm-gpus", metavar="8xh100-80gb", help="--slurm: GPUs of a node, to check memory and time."),
]


class SlurmOptions(NamedTuple):
    """The options of a job, as given."""

    partition: str | None = None
    account: str | None = None
    time_limit: str | None = None
    sbatch: tuple[str, ...] = ()
    gpus: str | None = None
    output: str | None = None

    def refuse_without_slurm(self) -> None:
        """Raise UserError for an option of a job without --slurm."""
        for name in self._given():
            raise UserError(
                what=f"{name} is an option of a job on Slurm",
                where=name,
                why="without --slurm the run starts on this machine",
                fix=f"add --slurm, or leave {name} out",
            )

    def refuse_with_spot(self, *, slurm: bool) -> None:
        """Raise UserError for --slurm or an option of it beside --spot, which shares only --output."""
        for name in ("--slurm",) if slurm else self._replace(output=None)._given():
            raise UserError(
                what=f"{name} and --spot",
                where=name,
                why="Slurm queues a run on your own cluster, and --spot rents machines until the run ends",
                fix=f"leave {name} out, or --spot and its options; --max-usd-per-hour limits the price of a machine",
            )

    def _given(self) -> list[str]:
        names = ("--partition", "--account", "--time-limit", "--sbatch", "--slurm-gpus", "--output")
        values = (self.partition, self.account, self.time_limit, self.sbatch, self.gpus, self.output)
        return [name for name, value in zip(names, values, strict=True) if value]


def submit(
    command: Command, options: SlurmOptions, run_options: Sequence[str], *, dry_run: bool, as_json: bool
) -> None:
    """Write the script and submit it. With `dry_run` nothing is submitted, and only --output is written.

    `run_options`: more options of `run`, for the job.
    """
    extra = script.parse_extra(options.sbatch)
    limit = None if options.time_limit is None else script.parse_limit(options.time_limit)
    unchecked = "memory, disk, paths, model and data are checked in the job"
    checked = check_config(command, validate=False, unchecked=unchecked)
    if checked.spec.parallel.machines > 1:  # the nodes have this installation
        from prime_train.bus.open import require_server  # here, because a run on one machine does not need it

        require_server("parallel.machines")
    run_dir = checked.run_dir
    has_gpus = dict(extra).get("gres") != "none"
    core_memory = _find_core_memory(dict(extra), options.partition)
    known = _known(checked, options.gpus)
    plan = resources.plan(checked.spec, known, limit, has_gpus=has_gpus, core_memory=core_memory)
    job = SlurmScript(
        name=checked.spec.run.name or run_dir.path.name,
        directory=Path.cwd(),
        folder=run_dir.slurm,
        argv=_argv(command, checked, plan, run_options),
        resources=plan.resources,
        exported=script.exported_names(os.environ, (checked.spec.prime_train.alerts.webhook_env,)),
        partition=options.partition,
        account=options.account,
        extra=extra,
    )
    text = script.write_script(job)
    _refuse_secrets(text, checked.spec)
    for note in plan.notes:
        typer.echo(note, err=True)
    file = Path(options.output) if options.output else run_dir.slurm / "job.sh"
    if dry_run:
        _show_plan(SlurmRun(run_dir, Submission(file, text)), job, written=options.output is not None, as_json=as_json)
        return
    submitted = SlurmRun(run_dir, Submission(file, text, None if command.has_file else checked.text))
    submitted.submit()
    assert submitted.job is not None, "it was submitted"
    _show_submitted(submitted.job, job, run_dir, as_json)


def _refuse_secrets(text: str, run: RunSpec) -> None:
    """Raise UserError if a secret of this environment is in the script."""
    if redact(text, own_secrets((run.prime_train.alerts.webhook_env,))) != text:
        raise UserError(
            what="a path or value of the job contains a secret of this environment",
            where="--slurm",
            why="Slurm stores the script and shows it to administrators",
            fix="keep the secret in an environment variable: --sbatch export=NAME passes it on by name",
        )


def _find_core_memory(extra: Mapping[str, str], partition: str | None) -> CoreMemory | None:
    """What Slurm gives for each core: as --sbatch mem-per-cpu asks for it, else at most as the partition has it."""
    if "cpus-per-task" in extra:
        return None
    asked = script.parse_mib(extra.get("mem", ""))
    given = script.parse_mib(extra.get("mem-per-cpu", ""))
    if given is not None:
        return CoreMemory(given, "--sbatch mem-per-cpu", asked)
    found = commands.find_core_memory(partition)
    return None if found is None else CoreMemory(found[0], f"MaxMemPerCPU of the partition {found[1]}", asked)


def _known(checked: CheckedConfig, gpus: str | None) -> KnownRun:
    """What the config, the estimate and earlier attempts of this run give."""
    run, run_dir = checked.spec, checked.run_dir
    shape = _shape(checked)
    saves = [one.event for one in read(run_dir.events) if isinstance(one.event, CheckpointSaved)]
    program, recorded_run = recorded(run_dir, strict=False)
    newest = find_newest_complete(program.checkpoints(recorded_run, run_dir))
    steps = read_step_times(run_dir.metrics)
    estimated_s = None if gpus is None else _estimated_step_s(run, shape, gpus)
    return KnownRun(
        parameters=None if shape is None else shape.parameters,
        vocab_size=None if shape is None else shape.vocab_size,
        save_s=max((save.write_s + save.stall_s for save in saves), default=None),
        longest_step_s=max(steps, default=None),
        step_s=median(steps) if steps else estimated_s,
        done_steps=newest.step if newest is not None else 0,
        saves_on_stop=program_of(run).stops_by_file,
    )


def _shape(checked: CheckedConfig) -> ModelShape | None:
    """The shape of the model, without a request to the network; None if it is not known here."""
    reading = detect.read(checked.text, checked.verdict.path)
    try:
        return inputs.find_shape(checked.spec, reading, inputs.EstimateOptions(checked.verdict.path, offline=True))
    except UserError:  # the job checks the model; only its size is missing here
        return None


def _estimated_step_s(run: RunSpec, shape: ModelShape | None, gpus: str) -> float | None:
    """The upper bound of a step on the GPUs of a node. Raises UserError if the run does not fit on them."""
    hardware = hardware_of.hardware_from_name(gpus, "--slurm-gpus")
    if shape is None:
        typer.echo("warning: --slurm-gpus: the size of the model is not known here", err=True)
        return None
    found = estimate(run, hardware, shape)
    if found.is_refused:
        raise UserError(
            what=f"the run does not fit on {gpus}",
            where=f"--slurm-gpus {gpus}",
            why="the job would wait in the queue and then run out of memory",
            fix=f"prime-train estimate CONFIG --gpus {gpus} shows every term and what to change",
            exit_code=ExitCode.FINDINGS,
        )
    return None if found.time is None else found.time.step_s.high


def _argv(command: Command, checked: CheckedConfig, plan: Plan, run_options: Sequence[str]) -> tuple[str, ...]:
    """The program of the job: this interpreter, which the nodes share, and the arguments of `run`.

    -P: a folder in the working directory must not replace a module of Python.
    """
    run, run_dir = checked.spec, checked.run_dir
    words = own_module("prime_train.away.slurm.slurm_program", str(run_dir.path))
    words += ["--max-fruitless", str(run.prime_train.restart.max_fruitless_attempts), "--"]
    if not command.has_file:  # config.toml has the text with the options
        words.append(str(kept_config(run_dir)))
    else:
        words.append(os.path.abspath(command.config) if os.path.exists(command.config) else command.config)  # noqa: PTH100, PTH110 - a preset's name is no path
        words += ["--run-name", command.run_name] if command.run_name is not None else []
        for assignment in command.overrides:
            words += ["--set", assignment]
    if plan.stop_grace_s > run.prime_train.stop_grace_s:
        words += ["--set", f"prime_train.stop_grace_s={plan.stop_grace_s:.1f}"]
    return (*words, *run_options)


def _show_plan(run: SlurmRun, job: SlurmScript, *, written: bool, as_json: bool) -> None:
    """Print the script, or write it to the file of --output."""
    assert run.submission is not None, "it is planned"
    if written:
        run.write()
        typer.echo(f"nothing was submitted; sbatch {run.submission.file} submits it", err=True)
    else:
        typer.echo("the plan, nothing was submitted or written", err=True)
    if as_json:
        typer.echo(json_text(_document(job, run.run_dir, None) | {"script": run.submission.script}))
    elif not written:
        typer.echo(run.submission.script, nl=False)


def _show_submitted(submitted: SlurmJob, job: SlurmScript, run_dir: RunDir, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(_document(job, run_dir, submitted)))
        return
    name = run_dir.path.name
    lines = [
        ("resources", script.describe(job.resources, job.extra)),
        ("output", str(record.output_file(run_dir, submitted))),
        ("look", f"prime-train status {name}; prime-train logs {name} --follow"),
        ("end", f"prime-train stop {name}"),
    ]
    typer.echo(labelled(f"{name}: job {submitted.job_id} was submitted", lines, sys.stdout))


def _document(job: SlurmScript, run_dir: RunDir, submitted: SlurmJob | None) -> dict[str, Any]:
    """The document of --json. `job_id` is null if nothing was submitted."""
    return {
        "version": 1,
        "run": job.name,
        "path": str(run_dir.path),
        "job_id": None if submitted is None else submitted.job_id,
        "cluster": (submitted.cluster or None) if submitted is not None else None,
        "resources": pick(job.resources, "gpus", "cpus", "memory_mib", "limit_minutes", "notice_s"),
    }
