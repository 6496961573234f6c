"""Checks the config of `run` before anything starts: reads it once, judges it once, names the run."""

import shlex
import sys
from typing import NamedTuple

import typer

from prime_train.cli.overrides import apply_overrides, parse_overrides
from prime_train.cli.render import painter
from prime_train.config import detect
from prime_train.config.parsed_config import Reading
from prime_train.config.source import read_config
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.findings import Severity
from prime_train.core.rundir import RunDir
from prime_train.core.units import counted
from prime_train.facts.facts import Facts
from prime_train.facts.gather import gather
from prime_train.programs import program_of
from prime_train.rules import judge
from prime_train.rules.judge import Verdict
from prime_train.spec import RunSpec
from prime_train.supervise.launch.program import Config, Program
from prime_train.toml.document import Document
from prime_train.views.findings import full


class Command(NamedTuple):
    """The arguments that name the run. --resume is not among them, because a repeated command resumes by itself."""

    config: str
    run_name: str | None
    overrides: tuple[str, ...]

    def text(self, *more: str) -> str:
        """The command that continues the run. An assignment in `more` replaces an override of the same key."""
        keys = {assignment.partition("=")[0] for assignment in more}
        kept = [given for given in self.overrides if given.partition("=")[0].strip() not in keys]
        words = ["prime-train", "run", self.config]
        words += ["--run-name", self.run_name] if self.run_name is not None else []
        for assignment in (*kept, *more):
            words += ["--set", assignment]
        return shlex.join(words)


class CheckedConfig(NamedTuple):
    """A config without errors. `text` is the config with --set and --run-name applied."""

    text: str
    spec: RunSpec
    run_dir: RunDir
    verdict: Verdict
    facts: Facts | None  # None with --no-validate

    def program(self, *, writes: bool) -> Program:
        """The program that trains or serves, as this config starts it. `writes`: see Program.configured."""
        return program_of(self.spec).configured(_config(self.verdict, self.text), self.run_dir, writes=writes)


def check_config(command: Command, *, validate: bool) -> CheckedConfig:
    """Read, judge and name the run. Prints findings; exits with code 1 if one is an error.

    Facts are gathered only if the rules that need none find no error: gathering takes seconds.
    """
    reading = _read_config(command)
    verdict = judge.judge_config(reading)
    left_out = _rules_left_out(verdict, command.config)
    named, facts = None, None
    if reading.run is not None and verdict.only(None, left_out).ok:
        named = program_of(reading.run).named(_config(verdict, ""), command.run_name)
        if validate:
            program = program_of(named[0])
            facts = gather(named[0], program.write_dir(*named), judge.needs(), look=program.run_folder)
        else:
            typer.echo("warning: --no-validate: memory, disk, paths, model and data are not checked", err=True)
    verdict = judge.judge_rest(reading, verdict, facts).only(None, left_out)
    _show_findings(verdict, command.config)
    if named is None or not verdict.ok:
        raise typer.Exit(ExitCode.FINDINGS)
    return CheckedConfig(reading.document.text, *named, verdict, facts)


def _read_config(command: Command) -> Reading:
    """The reading of the config with --set and --run-name written into its text.

    A prime-rl config may have no key for a name, so --run-name is applied later, to the launcher's copy.
    """
    text, path = read_config(command.config)
    if command.overrides or command.run_name is not None:
        is_run_toml = detect.is_run_toml(Document.parse(text, path))
        values = parse_overrides(command.overrides, plain_keys=not is_run_toml)
        if command.run_name is not None and is_run_toml:
            values["run.name"] = command.run_name
        text = apply_overrides(text, path, values)
    return detect.read(text, path)


def _rules_left_out(verdict: Verdict, config: str) -> tuple[str, ...]:
    """Codes of rules that do not apply to `run`. Raises UserError for a config that `run` cannot start.

    RUN003 looks for a second supervisor, which taking the run's lock rules out for certain.
    """
    if verdict.run is None:
        return ("RUN003",)
    if verdict.run.recipe is not None or verdict.run.jax is not None:
        raise _not_launchable(verdict, config)
    program = program_of(verdict.run)
    program.refuse(_config(verdict, ""))
    return ("RUN003", *program.cured)


def _config(verdict: Verdict, text: str) -> Config:
    assert verdict.run is not None
    return Config(text, verdict.path, verdict.run, verdict.root)


def _not_launchable(verdict: Verdict, config: str) -> UserError:
    shown = shlex.quote(config)
    if verdict.run is not None and verdict.run.recipe is not None:
        what = f"its [recipe] describes a training by {verdict.run.recipe.program or 'another program'}"
        fix = f"start that program; prime-train estimate {shown} estimates its memory, time and cost"
    else:
        what = "it is a Python script"
        fix = f"start it on each host; prime-train lint {shown} checks how it starts jax.distributed"
    why = "`run` starts the bundled trainer, which reads run.toml, or a whole run of prime-rl: rl or sft"
    return UserError(what=what, where=verdict.path, why=why, fix=fix)


def _show_findings(verdict: Verdict, config: str) -> None:
    """Print errors and warnings, and the number of notes."""
    notes = sum(finding.severity is Severity.NOTE for finding in verdict.findings)
    loud = tuple(finding for finding in verdict.findings if finding.severity is not Severity.NOTE)
    text = full(verdict._replace(findings=loud, skipped=()), painter(sys.stderr))
    if text:
        typer.echo(text, err=True)
    if notes:
        typer.echo(f"{counted(notes, 'note')}: prime-train validate {shlex.quote(config)}", err=True)
