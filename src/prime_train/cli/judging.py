"""What `run` makes of its config before anything is started: the text that counts, the verdict, what trains."""

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from prime_train.errors import ExitCode, UserError

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts
    from prime_train.rules.judge import Verdict
    from prime_train.rundir import RunDir
    from prime_train.spec import RunSpec
    from prime_train.supervise.launch.program import Config, Program


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

    def program(self, text: str, *, writes: bool) -> "Program":
        """The program that trains or serves, as this config starts it. `writes`: see Program.configured."""
        from prime_train.programs import program_of

        return program_of(self.spec).configured(_config(self.verdict, text), self.run_dir, writes=writes)


def effective(command: Command) -> tuple[str, str]:
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


def judged(text: str, shown: str, command: Command, *, validate: bool) -> Judged:
    """The config as judged. Prints the findings that matter; ends with exit code 1 where one is an error."""
    from prime_train.rules import judge

    # A second comer is turned away by the lock itself, which cannot be too late.
    verdict, moot = judge.lint(text, shown), _moot(judge.lint(text, shown), command.config)
    verdict, settled, facts = verdict.only(None, moot), None, None
    if verdict.ok and verdict.run is not None:
        settled = _settled(verdict, command.run_name)
        if validate:
            from prime_train.facts.gather import gather
            from prime_train.programs import program_of

            program = program_of(verdict.run)
            facts = gather(settled[0], program.write_dir(*settled), judge.needs(), look=program.run_folder)
            verdict = judge.validate(text, shown, facts).only(None, moot)
        else:
            typer.echo("warning: --no-validate: memory, disk, paths, model and data are not checked", err=True)
    _tell(verdict, command.config)
    if not verdict.ok or verdict.run is None or settled is None:
        raise typer.Exit(ExitCode.FINDINGS)
    return Judged(*settled, verdict, facts)


def _moot(verdict: "Verdict", config: str) -> tuple[str, ...]:
    """Codes of rules that have nothing to say of this run. Raises UserError for what is not started here."""
    from prime_train.programs import program_of

    if verdict.run is None:
        return ("RUN003",)
    if verdict.run.recipe is not None or verdict.run.jax is not None:
        raise _of_another_program(verdict, config)
    program = program_of(verdict.run)
    program.refuse(_config(verdict, ""))
    return ("RUN003", *program.cured)


def _config(verdict: "Verdict", text: str) -> "Config":
    from prime_train.supervise.launch.program import Config

    assert verdict.run is not None
    return Config(text, verdict.path, verdict.run, verdict.root)


def _settled(verdict: "Verdict", run_name: str | None) -> "tuple[RunSpec, RunDir]":
    """The run as it will be supervised, and its directory."""
    from prime_train.programs import program_of

    assert verdict.run is not None
    return program_of(verdict.run).named(_config(verdict, ""), run_name)


def _of_another_program(verdict: "Verdict", config: str) -> UserError:
    """What to say of a file that nothing which is started here reads."""
    shown = shlex.quote(config)
    if verdict.run is not None and verdict.run.recipe is not None:
        what = f"its [recipe] describes a training by {verdict.run.recipe.program or 'another program'}"
        fix = f"start that program; prime-train estimate {shown} says what it needs"
    else:
        what = "it is a Python script"
        fix = f"start it on each host; prime-train lint {shown} says how it starts jax.distributed"
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
