"""`prime-train run`: checks a config, opens its run and supervises it to the end."""

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.options import NoColor
from prime_train.errors import ExitCode, UserError

if TYPE_CHECKING:
    from prime_train.rules.judge import Verdict
    from prime_train.rundir import RunDir
    from prime_train.spec import RunSpec
    from prime_train.supervise.prepare import Resume

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
    as_json: Annotated[bool, typer.Option("--json", help="At the end, the status as one JSON document.")] = False,
    _no_color: NoColor = False,
) -> None:
    """Train under supervision; the same command resumes.

    Checks the config, starts the trainer, watches it, restarts it from the newest complete checkpoint.
    Ctrl-C asks for a checkpoint and ends with exit code 75.

    \b
    Examples:
      prime-train run
      prime-train run run.toml --run-name second-try --set optim.lr=3e-4
    """
    from prime_train.cli import plan

    text, shown = _effective(config, run_name, overrides or [])
    wanted = _resume(resume)
    spec = _judged(text, shown, validate=not no_validate)
    run_dir = _directory(spec)
    if dry_run:
        typer.echo(plan.text(spec, run_dir, wanted))
        return
    again = _same_command(config, run_name, overrides or [])
    raise typer.Exit(_supervised(text, spec, run_dir, wanted, again, as_json))


def _effective(config: str, run_name: str | None, overrides: list[str]) -> tuple[str, str]:
    """The text that is judged and kept, with --set and --run-name written into it, and the path to show."""
    from prime_train.cli.overrides import apply, parse
    from prime_train.dialects.read import read_config

    text, shown = read_config(config)
    values = parse(overrides)
    if run_name is not None:
        values["run.name"] = run_name
    return apply(text, shown, values), shown


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


def _judged(text: str, shown: str, *, validate: bool) -> "RunSpec":
    """The RunSpec of a config without errors. Prints every finding; ends with exit code 1 where one is an error."""
    from prime_train.rules.judge import lint

    verdict = lint(text, shown)
    if verdict.ok and validate:
        verdict = _validated(text, shown, verdict.run)
    elif verdict.ok:
        typer.echo("warning: --no-validate: memory, disk, paths, model and data are not checked", err=True)
    _tell(verdict)
    if not verdict.ok or verdict.run is None:
        raise typer.Exit(ExitCode.FINDINGS)
    return verdict.run


def _validated(text: str, shown: str, spec: "RunSpec | None") -> "Verdict":
    from prime_train.facts.gather import gather
    from prime_train.rules.judge import needs, validate

    assert spec is not None, "a config without errors is a RunSpec"
    return validate(text, shown, gather(spec, _directory(spec).path, needs()))


def _directory(spec: "RunSpec") -> "RunDir":
    from prime_train.rundir import RunDir

    return RunDir((Path(spec.run.dir).expanduser() / spec.run.name).resolve())


def _tell(verdict: "Verdict") -> None:
    from prime_train.cli.render import paint
    from prime_train.views.findings import full

    told = full(replace(verdict, skipped=()), lambda words, style: paint(words, style, sys.stderr))
    if told:
        typer.echo(told, err=True)


def _supervised(text: str, spec: "RunSpec", run_dir: "RunDir", wanted: "Resume", again: str, as_json: bool) -> ExitCode:
    from prime_train.supervise.lock import held
    from prime_train.supervise.loop import supervise
    from prime_train.supervise.prepare import open_run
    from prime_train.views.console import shown

    with held(run_dir):
        opened = open_run(text, spec, run_dir, wanted)
        for note in opened.notes:
            typer.echo(note, err=True)
        code = ExitCode.OK
        if not opened.finished:
            with shown(sys.stderr) as show:
                code = supervise(opened.run, run_dir, show)
        with _uninterrupted():
            _close(run_dir, again, as_json)
    return code


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """The run is down: a second Ctrl-C must not take away its report and its exit code."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close(run_dir: "RunDir", again: str, as_json: bool) -> None:
    """Write the report, and print what the run came to."""
    from prime_train.cli.render import labelled
    from prime_train.views import report, status, summary

    try:
        report.write(run_dir)
    except OSError as error:  # a full disk ends a run, and must not hide how it ended
        typer.echo(f"warning: the report could not be written: {error}", err=True)
    if as_json:
        typer.echo(json.dumps(status.as_json(status.look(run_dir, time.time())), indent=1))
    else:
        title, lines = summary.gather(run_dir, again)
        typer.echo(labelled(title, lines, sys.stdout))


def _same_command(config: str, run_name: str | None, overrides: list[str]) -> str:
    """The command that goes on with this run. Without --resume: from the newest checkpoint."""
    words = ["prime-train", "run", config]
    words += ["--run-name", run_name] if run_name is not None else []
    for assignment in overrides:
        words += ["--set", assignment]
    return shlex.join(words)
