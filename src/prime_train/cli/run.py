"""`prime-train run`: checks a config, opens its run and supervises it to the end."""

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli import judging
from prime_train.cli.judging import Command, Judged
from prime_train.cli.options import NoColor
from prime_train.errors import ExitCode, UserError

if TYPE_CHECKING:
    from prime_train.events import Record
    from prime_train.rundir import RunDir
    from prime_train.spec import RunSpec
    from prime_train.supervise.launch.run_directory import Resume
    from prime_train.supervise.state import State

QUICKSTART = "quickstart"


def run(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A run.toml, or the name of a preset.", show_default=True)
    ] = QUICKSTART,
    run_name: Annotated[
        str | None, typer.Option("--run-name", metavar="NAME", help="Instead of run.name: names the run's directory.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replaces one value of the config; may be given again."),
    ] = None,
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="auto|never|STEP",
            help="From the newest complete checkpoint, from none, or from this step; newer ones are kept aside.",
        ),
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; start and write nothing.")] = False,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", help="Leave out the checks of this machine: memory, disk, paths.")
    ] = False,
    verbose_vllm: Annotated[
        bool, typer.Option("--verbose-vllm", help="Show the log of the vLLM server as it comes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="At the end, the status as one JSON document.")] = False,
    _no_color: NoColor = False,
) -> None:
    """Train under supervision; the same command resumes.

    Checks the config, starts the trainer, watches it, restarts it from the newest complete checkpoint.
    Ctrl-C asks for a checkpoint and ends with exit code 75.

    Examples:

      prime-train run

      prime-train run run.toml --run-name second-try --set optim.lr=3e-4
    """
    from prime_train.cli import plan

    command = Command(config, run_name, tuple(overrides or []))
    text, shown = judging.effective(command)
    wanted = _resume(resume)
    judged = judging.judged(text, shown, command, validate=not no_validate)
    if dry_run:
        typer.echo(plan.text(judged.spec, judged.run_dir, wanted, judged.program(text, writes=False)))
        return
    raise typer.Exit(_supervised(text, judged, wanted, command, as_json, verbose_vllm=verbose_vllm))


def _resume(given: str) -> "Resume":
    match given:
        case "auto":
            return "auto"
        case "never":
            return "never"
        case step if step.isdecimal() and int(step) > 0:
            return int(step)
    raise UserError(
        what=f"{given!r} is none of auto, never, STEP",
        where=f"--resume {given}",
        why="STEP is the number of a checkpoint's step",
        fix="prime-train ckpt list RUN shows the steps there are",
    )


def _supervised(
    text: str, judged: Judged, wanted: "Resume", command: Command, as_json: bool, *, verbose_vllm: bool
) -> ExitCode:
    from prime_train.dialects.read import STDIN
    from prime_train.programs import program_of
    from prime_train.supervise.lock import held, unwritable
    from prime_train.supervise.loop import supervise
    from prime_train.views.console import shown
    from prime_train.views.service_log import ServiceLog

    run_dir = judged.run_dir
    judged.program(text, writes=False)  # what cannot be started leaves no directory behind
    if command.config == STDIN:  # what was piped in is not there a second time; the run keeps it, options and all
        command = Command(str(run_dir.config), None, ())
    with held(run_dir) as lock:
        opened = program_of(judged.spec).open_run(text, judged.spec, run_dir, wanted)
        program = judged.program(text, writes=True)
        try:
            _keep_judgement(judged)
        except OSError as error:
            raise unwritable(error, run_dir) from None
        for note in (*opened.notes, *program.notes(opened.run)):
            typer.echo(note, err=True)
        code = ExitCode.OK
        if not opened.finished:
            _mirrored(opened.run, run_dir)
            with shown(sys.stderr, ServiceLog() if verbose_vllm else None) as show:

                def each_turn(state: "State", records: "Sequence[Record]") -> None:
                    lock.keep()
                    show(state, records)

                code = supervise(opened.run, run_dir, each_turn, program)
        with _uninterrupted():
            steps_key = "run.max_steps" if judged.spec.is_native else "max_steps"
            _close(run_dir, command, command.text(f"{steps_key}={2 * opened.run.run.max_steps}"), as_json)
    return code


def _mirrored(run: "RunSpec", run_dir: "RunDir") -> None:
    """Show the run at W&B where its config asks for it: a process of its own, which outlives this one."""
    if run.prime_train.wandb.project is None:
        return
    from prime_train.views import wandb_mirror

    try:
        wandb_mirror.begin(run_dir)
    except OSError as error:  # a run is not given up for its mirror
        typer.echo(f"warning: the mirror at W&B cannot be started: {error}", err=True)


def _keep_judgement(judged: Judged) -> None:
    """Write down what was known and said of the config, for whoever asks later why the run was let go."""
    from prime_train.facts.facts import Facts, to_json
    from prime_train.rundir import write_atomic
    from prime_train.views.findings import validate_json

    facts = to_json(judged.facts or Facts())
    write_atomic(judged.run_dir.facts, json.dumps(facts, indent=1))
    write_atomic(judged.run_dir.verdict, json.dumps(validate_json(judged.verdict, facts), indent=1))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """The run is down: a second Ctrl-C must not take away its report and its exit code."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close(run_dir: "RunDir", command: Command, longer: str, as_json: bool) -> None:
    """Write the report, and print what the run came to."""
    from prime_train.cli.render import labelled
    from prime_train.views import report, status, summary

    try:
        report.write(run_dir)
    except OSError as error:  # a full disk ends a run, and must not hide how it ended
        typer.echo(f"warning: the report could not be written: {error}", err=True)
    if as_json:
        told = json.dumps(status.as_json(status.look(run_dir, time.time())), indent=1)
    else:
        title, lines = summary.gather(run_dir, command.text(), longer)
        told = labelled(title, lines, sys.stdout)
    with suppress(OSError):  # the terminal is closed, or nobody reads the pipe: the run's exit code counts all the same
        typer.echo(told)
