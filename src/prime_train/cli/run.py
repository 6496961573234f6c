"""`prime-train run`: checks a config, opens its run and supervises it to the end."""

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.options import NoColor
from prime_train.errors import ExitCode, UserError

if TYPE_CHECKING:
    from prime_train.backends.backend import Backend
    from prime_train.facts.facts import Facts
    from prime_train.rules.judge import Verdict
    from prime_train.rundir import RunDir
    from prime_train.spec import RunSpec
    from prime_train.supervise.prepare import Opened, Resume

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
    text, shown = _effective(command)
    wanted = _resume(resume)
    judged = _judged(text, shown, command, validate=not no_validate)
    if dry_run:
        typer.echo(plan.text(judged.spec, judged.run_dir, wanted, judged.backend(text, writes=False)))
        return
    raise typer.Exit(_supervised(text, judged, wanted, command, as_json, verbose_vllm=verbose_vllm))


@dataclass(frozen=True, slots=True)
class Command:
    """What names the run on the command line; --resume is left out, for the newest checkpoint is what goes on."""

    config: str
    run_name: str | None
    overrides: tuple[str, ...]

    def text(self, *more: str) -> str:
        """The command that goes on with the run. An assignment in `more` takes the place of the one it repeats."""
        keys = {assignment.partition("=")[0] for assignment in more}
        kept = [given for given in self.overrides if given.partition("=")[0].strip() not in keys]
        words = ["prime-train", "run", self.config]
        words += ["--run-name", self.run_name] if self.run_name is not None else []
        for assignment in (*kept, *more):
            words += ["--set", assignment]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Judged:
    """A config without errors, and what was known and said of it."""

    spec: "RunSpec"
    run_dir: "RunDir"
    verdict: "Verdict"
    facts: "Facts | None"  # None = not asked for

    def backend(self, text: str, *, writes: bool) -> "Backend":
        """What trains. `writes`: it may keep something of its own in the run's directory."""
        if self.spec.is_native:
            from prime_train.backends import native

            return native.backend(self.spec)
        from prime_train.cli import prime_rl

        return prime_rl.backend(self.verdict, text, self.run_dir, writes=writes)

    def notes(self, run: "RunSpec", backend: "Backend") -> tuple[str, ...]:
        """What a person should know of how this run is trained."""
        from prime_train.backends.prime_rl import PrimeRl
        from prime_train.cli import prime_rl

        return prime_rl.notes(run, backend) if isinstance(backend, PrimeRl) else ()


def _effective(command: Command) -> tuple[str, str]:
    """The text that is judged and kept, with --set and --run-name written into it, and the path to show.

    A config of prime-rl may have no key for a name: it is named when its copy is written.
    """
    from prime_train.cli.overrides import apply, parse
    from prime_train.dialects import dialect, native
    from prime_train.dialects.read import read_config

    text, shown = read_config(command.config)
    is_native = dialect.read(text, shown).dialect == native.DIALECT
    text = apply(text, shown, parse(command.overrides, plain_keys=not is_native))
    if command.run_name is not None and is_native:
        text = apply(text, shown, {"run.name": command.run_name})
    return text, shown


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


def _judged(text: str, shown: str, command: Command, *, validate: bool) -> Judged:
    """The config as judged. Prints the findings that matter; ends with exit code 1 where one is an error."""
    from prime_train.rules import judge

    # A second comer is turned away by the lock itself, which cannot be too late.
    verdict, moot = judge.lint(text, shown), _moot(judge.lint(text, shown), command.config)
    verdict, settled, facts = verdict.only(None, moot), None, None
    if verdict.ok and verdict.run is not None:
        settled = _settled(verdict, command.run_name)
        if validate:
            from prime_train.facts.gather import gather

            facts = gather(settled[0], _written_to(*settled), judge.needs())
            verdict = judge.validate(text, shown, facts).only(None, moot)
        else:
            typer.echo("warning: --no-validate: memory, disk, paths, model and data are not checked", err=True)
    _tell(verdict, command.config)
    if not verdict.ok or verdict.run is None or settled is None:
        raise typer.Exit(ExitCode.FINDINGS)
    return Judged(*settled, verdict, facts)


def _moot(verdict: "Verdict", config: str) -> tuple[str, ...]:
    """Codes of rules that have nothing to say of this run. Raises UserError for what is not started here."""
    if verdict.run is None or verdict.run.is_native:
        return ("RUN003",)
    from prime_train.cli import prime_rl

    if not prime_rl.is_launchable(verdict):
        raise _of_another_program(verdict, config)
    prime_rl.refuse(verdict, config)
    return ("RUN003", *prime_rl.CURED)


def _settled(verdict: "Verdict", run_name: str | None) -> "tuple[RunSpec, RunDir]":
    """The run as it will be supervised, and its directory."""
    from prime_train.rundir import RunDir

    assert verdict.run is not None
    if verdict.run.is_native:
        return verdict.run, RunDir((Path(verdict.run.run.dir).expanduser() / verdict.run.run.name).resolve())
    from prime_train.cli import prime_rl

    return prime_rl.settled(verdict, run_name)


def _written_to(run: "RunSpec", run_dir: "RunDir") -> Path:
    """Where the trainer writes: what the rules of disk and folders are about."""
    if run.is_native:
        return run_dir.path
    from prime_train.backends import prime_rl

    return prime_rl.folder(run)


def _of_another_program(verdict: "Verdict", config: str) -> UserError:
    """What to say of a file that nothing which is started here reads."""
    shown = shlex.quote(config)
    if verdict.run is not None and verdict.run.recipe is not None:
        what = f"its [recipe] describes a training by {verdict.run.recipe.program or 'another program'}"
        fix = f"start that program; prime-train estimate {shown} says what it needs"
    elif verdict.run is not None and verdict.run.jax is not None:
        what = "it is a Python script"
        fix = f"start it on each host; prime-train lint {shown} says how it starts jax.distributed"
    else:
        own = verdict.root if verdict.root in ("trainer", "orchestrator", "inference") else "COMMAND"
        what = f"it is a config of one part of a run of prime-rl {verdict.generation} ({verdict.root})"
        fix = f"in prime-rl: uv run {own} @ {shown}, without [prime_train]; prime-train lint and estimate read it"
    why = "what is started here is the bundled trainer, which reads run.toml, or a whole run of prime-rl: rl or sft"
    return UserError(what=what, where=verdict.path, why=why, fix=fix)


def _tell(verdict: "Verdict", config: str) -> None:
    """Findings that a person should see before a run starts; of mere notes only how many there are."""
    from prime_train.cli.render import paint
    from prime_train.findings import Severity
    from prime_train.views.findings import full

    notes = sum(finding.severity is Severity.NOTE for finding in verdict.findings)
    loud = tuple(finding for finding in verdict.findings if finding.severity is not Severity.NOTE)
    told = full(verdict._replace(findings=loud, skipped=()), lambda words, style: paint(words, style, sys.stderr))
    if told:
        typer.echo(told, err=True)
    if notes:
        typer.echo(f"{notes} note{'' if notes == 1 else 's'}: prime-train validate {shlex.quote(config)}", err=True)


def _supervised(
    text: str, judged: Judged, wanted: "Resume", command: Command, as_json: bool, *, verbose_vllm: bool
) -> ExitCode:
    from prime_train.dialects.read import STDIN
    from prime_train.supervise.lock import held, unwritable
    from prime_train.supervise.loop import supervise
    from prime_train.views.console import shown
    from prime_train.views.service_log import ServiceLog

    run_dir = judged.run_dir
    judged.backend(text, writes=False)  # what cannot be started leaves no directory behind
    if command.config == STDIN:  # what was piped in is not there a second time; the run keeps it, options and all
        command = Command(str(run_dir.config), None, ())
    with held(run_dir):
        opened = _opened(text, judged, wanted)
        backend = judged.backend(text, writes=True)
        try:
            _keep_judgement(judged)
        except OSError as error:
            raise unwritable(error, run_dir) from None
        for note in (*opened.notes, *judged.notes(opened.run, backend)):
            typer.echo(note, err=True)
        code = ExitCode.OK
        if not opened.finished:
            _mirrored(opened.run, run_dir)
            with shown(sys.stderr, ServiceLog() if verbose_vllm else None) as show:
                code = supervise(opened.run, run_dir, show, backend)
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


def _opened(text: str, judged: Judged, wanted: "Resume") -> "Opened":
    """The run's directory, ready for a supervisor."""
    if judged.spec.is_native:
        from prime_train.supervise.prepare import open_run

        return open_run(text, judged.spec, judged.run_dir, wanted)
    from prime_train.supervise import prime_rl_open

    return prime_rl_open.open_run(text, judged.spec, judged.run_dir, wanted)


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
