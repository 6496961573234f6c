"""`prime-train run`: checks a config, opens its run and supervises it until it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.run.backup import copy_last, restore, with_defaults
from prime_train.cli.run.machines import (
    MachineAddresses,
    MachinePort,
    MachineRank,
    find_place,
    follow_machine_0,
    open_machines,
)
from prime_train.cli.run.plan import plan_document, plan_text
from prime_train.cli.run.preflight import CheckedConfig, Command, check_config
from prime_train.cli.run.slurm import Account, Partition, Sbatch, Slurm, SlurmGpus, SlurmOptions, TimeLimit
from prime_train.cli.run.spot import Bucket, Cloud, Detach, Gpus, MaxPrice, Output, Package, Spot, SpotOptions, Yes
from prime_train.cli.terminal.options import COMMAND_WORD, NoColor, complete_config
from prime_train.cli.terminal.output import show_bytes
from prime_train.cli.terminal.render import labelled, message
from prime_train.cli.terminal.standard_streams import take_output_error, write_note
from prime_train.config.detect import join_configs
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import Machines
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events import Record
from prime_train.facts.facts import Facts, to_json
from prime_train.programs import program_of
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import traits_of
from prime_train.supervise.answers.check_settings import refuse_start
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.run_directory import Resume
from prime_train.supervise.processes.lock import hold_run, refuse_held, unwritable_error
from prime_train.supervise.processes.requests import STOP_SIGNALS
from prime_train.views.findings import validate_json
from prime_train.views.run import history, report
from prime_train.views.run.console import open_console
from prime_train.views.run.logs import ServiceLog
from prime_train.views.run.status import read_status
from prime_train.views.run.status_document import status_document
from prime_train.views.text import encode_json

QUICKSTART = "quickstart"
_STEP_DIGITS = 18
RUN_TOML = "run.toml"


def run(
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A run.toml, or the name of a preset; files with + between them are merged. Default: run.toml if "
            "this folder has one, else quickstart.",
            autocompletion=complete_config,
            show_default=False,
        ),
    ] = None,
    run_name: Annotated[
        str | None,
        typer.Option("--run-name", metavar="NAME", help="Replaces run.name, the name of the run's directory."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replaces one value of the config; repeatable."),
    ] = None,
    bus: Annotated[
        str | None,
        typer.Option("--bus", metavar="nats|URL", help="Connect the run with a controller; nats: that of this folder."),
    ] = None,
    risk_model: Annotated[
        str | None,
        typer.Option("--risk-model", metavar="FILE", help="Weights of the estimate that a GPU fails soon."),
    ] = None,
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="auto|never|STEP",
            help="Resume from the newest complete checkpoint, from none, or from STEP; newer ones are renamed.",
        ),
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; start and write nothing.")] = False,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", help="Skip the checks of this machine: memory, disk, paths, CUDA, vLLM.")
    ] = False,
    verbose_vllm: Annotated[bool, typer.Option("--verbose-vllm", help="Also show the log of the vLLM server.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the final status, or with --dry-run the plan, as one JSON document."),
    ] = False,
    spot: Spot = False,
    cloud: Cloud = None,
    bucket: Bucket = None,
    max_usd_per_hour: MaxPrice = None,
    package: Package = None,
    gpus: Gpus = None,
    yes: Yes = False,
    detach: Detach = False,
    slurm: Slurm = False,
    partition: Partition = None,
    account: Account = None,
    time_limit: TimeLimit = None,
    sbatch: Sbatch = None,
    slurm_gpus: SlurmGpus = None,
    machine_rank: MachineRank = None,
    machine_addresses: MachineAddresses = None,
    machine_port: MachinePort = None,
    output: Output = None,
    words: Annotated[list[str] | None, typer.Option(COMMAND_WORD, hidden=True)] = None,
    _no_color: NoColor = False,
) -> None:
    """Train under supervision; the same command resumes.

    Checks the config, starts the trainer, watches it, and restarts it from the newest complete checkpoint.
    Ctrl-C saves a checkpoint and ends the run with exit code 75. Words after -- are the command line of any other
    trainer: it is started and watched the same way.

    Examples:

      prime-train run

      prime-train run run.toml --run-name second-try --set optim.lr=3e-4

      prime-train run -- torchrun --nproc-per-node 2 train.py

      prime-train run run.toml --detach

      prime-train run run.toml --spot --dry-run

      prime-train run --spot --gpus 2xh100-80gb --dry-run -- torchrun --nproc-per-node 2 train.py

      prime-train run run.toml --slurm --partition gpu --time-limit 4:00:00
    """
    given = [*_choose_bus(bus), *([] if risk_model is None else [f"prime_train.gpu_risk.model={_check(risk_model)}"])]
    command = _choose_command(configs, run_name, (*(overrides or []), *given), words)
    rented = SpotOptions(cloud, output, bucket, max_usd_per_hour, package, yes, detach, dry_run, resume, as_json, gpus)
    queued = SlurmOptions(partition, account, time_limit, tuple(sbatch or []), slurm_gpus, output)
    if spot:
        from prime_train.cli.run.spot import run_spot  # here, because a run on this machine does not need it

        queued.refuse_with_spot(slurm=slurm)
        raise typer.Exit(run_spot(command, rented))
    rented.refuse_without_spot()
    start = _parse_resume(resume)
    if slurm:
        from prime_train.cli.run.slurm import submit  # here, because a run on this machine does not need it

        passed_on = ["--resume", resume, *(["--no-validate"] if no_validate else [])]
        submit(command, queued, passed_on, dry_run=dry_run, as_json=as_json)
        return
    queued.refuse_without_slurm()
    if detach and not dry_run:
        from prime_train.cli.run.detached import run_detached  # here, because most runs stay in the foreground

        raise typer.Exit(run_detached(command, as_json=as_json))
    checked = check_config(command, validate=not no_validate, starts=not dry_run, only_shown=dry_run)
    checked = checked._replace(spec=with_defaults(checked.spec))
    if dry_run:
        if command.words:
            write_note(f"the run.toml that the command stands for:\n\n{checked.text}")
        refuse_held(checked.run_dir)
        try:
            refuse_start(checked.text, checked.spec, checked.run_dir, start)
            opened = program_of(checked.spec).open_run(None, checked.spec, checked.run_dir, start)
        except UserError as error:
            if checked.verdict.ok:
                raise
            write_note(message(error, sys.stderr))  # the findings come first, and decide the exit code
            raise typer.Exit(ExitCode.FINDINGS) from None
        for note in opened.notes:
            write_note(note)
        if not opened.finished:
            program = checked.program(writes=False, only_shown=True)
            document = plan_document(opened.run, checked.run_dir, start, program, may_start=not no_validate)
            typer.echo(encode_json(document) if as_json else plan_text(document))
        if not checked.verdict.ok:
            raise typer.Exit(ExitCode.FINDINGS)
        return
    machines = find_place(checked.spec, machine_rank, machine_addresses, machine_port)
    if machines is not None and machines.rank > 0:
        raise typer.Exit(follow_machine_0(checked, machines))
    raise typer.Exit(_supervise(checked, start, command, machines, as_json=as_json, verbose_vllm=verbose_vllm))


def _choose_command(
    configs: list[str] | None, run_name: str | None, overrides: tuple[str, ...], words: list[str] | None
) -> Command:
    """The config of the command line: files, or the words after --. Raises UserError for both, and for no word."""
    if not words:
        return Command(join_configs(configs) if configs else _choose_config(), run_name, overrides)
    if configs:
        raise UserError(
            what="a config and the command of a trainer",
            where=" ".join(["prime-train run", *(configs or ()), "--", *words]),
            why="words after -- are started and watched, and stand in place of a config",
            fix="prime-train run -- torchrun --nproc-per-node 2 train.py; or prime-train run run.toml",
        )
    return Command("", run_name, overrides, tuple(words))


def _choose_config() -> str:
    """The config of a command without one: run.toml of this folder, or the preset."""
    if not os.path.lexists(RUN_TOML):
        return QUICKSTART
    write_note(f"config: {RUN_TOML}")
    return RUN_TOML


def _parse_resume(given: str) -> Resume:
    match given:
        case "auto":
            return "auto"
        case "never":
            return "never"
        case step if step.isdecimal() and len(step) <= _STEP_DIGITS and int(step) > 0:
            return int(step)
    raise UserError(
        what=f"{given!r} is none of auto, never, STEP",
        where=f"--resume {given}",
        why="STEP is the step of a checkpoint",
        fix="prime-train ckpt list RUN lists the steps",
    )


def _supervise(
    checked: CheckedConfig,
    resume: Resume,
    command: Command,
    machines: Machines | None,
    *,
    as_json: bool,
    verbose_vllm: bool,
) -> ExitCode:
    from prime_train.programs.vllm.program import create_key  # here, because --help and a refused config need none
    from prime_train.supervise.core.loop import supervise
    from prime_train.supervise.services.packing import delete_pieces

    run_dir = checked.run_dir
    checked.program(writes=False)  # raises before a directory is made for a run that cannot start
    if not command.has_file and not command.words:  # standard input cannot be read again; config.toml has its text
        command = Command(str(run_dir.config), None, ())
    with hold_run(run_dir) as lock, open_machines(machines, checked.text) as ended:
        restore(checked.spec, run_dir, resume, show_bytes)
        refuse_start(checked.text, checked.spec, run_dir, resume)
        opened = program_of(checked.spec).open_run(checked.text, checked.spec, run_dir, resume)
        program = checked.program(writes=True)
        _write_verdict(checked)
        for note in (*opened.notes, *program.notes(opened.run)):
            write_note(note)
        code = ExitCode.OK
        if not opened.finished:
            create_key(opened.run, os.environ)
            _start_mirror(opened.run, run_dir)
            _start_agent(opened.run, run_dir)
            with open_console(sys.stderr, ServiceLog() if verbose_vllm else None) as show:

                def each_turn(state: State, records: Sequence[Record]) -> None:
                    lock.keep()
                    show(state, records)

                code = supervise(opened.run, run_dir, each_turn, program)
        else:  # its supervisor may have been killed after the last step
            copy_last(opened.run, run_dir, opened.state)
            if opened.run.prime_train.backup.compress:
                delete_pieces(run_dir)
        ended(code)
        with _ignore_signals():
            steps, key = opened.run.run.max_steps, traits_of(checked.spec).max_steps_key
            longer = "" if steps >= ENDLESS_STEPS else command.text(f"{key}={2 * steps}")
            _close(run_dir, command, longer, as_json)
    return code


def _start_mirror(run: RunSpec, run_dir: RunDir) -> None:
    """Start the process that copies the run to W&B, if the config has a project. It outlives this process."""
    if run.prime_train.wandb.project is None:
        return
    from prime_train.views import wandb_mirror

    try:
        wandb_mirror.start(run_dir)
    except OSError as error:  # the run goes on without its mirror
        write_note(f"warning: the mirror at W&B cannot be started: {error}")


def _check(risk_model: str) -> str:
    """The absolute path of a model that can be used. Raises UserError."""
    from prime_train.registry.gpu_risk import read_model  # here, because most runs have the shipped weights

    read_model(Path(risk_model))
    return str(Path(risk_model).absolute())


def _choose_bus(bus: str | None) -> list[str]:
    """The keys that --bus sets; `nats` is the server that a controller of this folder has started. Raises UserError."""
    if bus != "nats":
        return [] if bus is None else [f"prime_train.bus.url={bus}"]
    from prime_train.cli.control.bus import find_own_bus  # here, because most runs have no bus

    address, credentials = find_own_bus()
    return [f"prime_train.bus.url={address}", f"prime_train.bus.credentials_file={credentials}"]


def _start_agent(run: RunSpec, run_dir: RunDir) -> None:
    """Start the process that connects the run with a controller, if the config has a bus. It outlives this process."""
    if run.prime_train.bus.url is None:
        return
    from prime_train.supervise.agent import program

    try:
        program.start(run_dir, run.prime_train.bus)
    except OSError as error:  # the run goes on without its agent
        write_note(f"warning: the agent of the bus cannot be started: {error}")


def _write_verdict(checked: CheckedConfig) -> None:
    """Write facts.json and verdict.json, so that it can be checked later why the run was started."""
    facts = to_json(checked.facts or Facts())
    try:
        write_atomic(checked.run_dir.facts, json.dumps(facts, indent=1))
        write_atomic(checked.run_dir.verdict, json.dumps(validate_json(checked.verdict, facts), indent=1))
    except OSError as error:
        raise unwritable_error(error, checked.run_dir) from None


@contextmanager
def _ignore_signals() -> Iterator[None]:
    """Ignore stop requests: a second Ctrl-C must not prevent the report and the exit code of an ended run."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close(run_dir: RunDir, command: Command, longer: str, as_json: bool) -> None:
    """Write the report and print the summary."""
    try:
        report.write(run_dir)
    except OSError as error:  # a full disk must not hide how the run ended
        write_note(f"warning: the report could not be written: {error}")
    if as_json:
        text = json.dumps(status_document(read_status(run_dir, time.time())), indent=1)
    else:
        title, lines = history.summarize(run_dir, command.text(), longer)
        text = labelled(title, lines, sys.stdout)
    try:
        typer.echo(text)
    except OSError as error:  # a closed terminal, a pipe without a reader or a full disk changes no exit code
        take_output_error(error)
        if error.errno not in (errno.EPIPE, errno.EIO):
            write_note(f"warning: the summary could not be printed: {error.strerror}")
