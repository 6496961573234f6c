"""Checks the config of `run` before anything starts: reads it once, judges it once, names the run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli
import typer

from prime_train.cli.lint.interpreters import announce_interpreters
from prime_train.cli.terminal.render import painter
from prime_train.cli.terminal.standard_streams import write_note
from prime_train.config import detect, run_toml
from prime_train.config.detect import MERGE, read_config, split_config
from prime_train.config.foreign.values import SUFFIXES
from prime_train.config.parsed_config import Reading
from prime_train.config.schema import walk_fields
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.findings import Severity
from prime_train.core.rundir import RunDir
from prime_train.core.units import counted
from prime_train.facts.facts import Facts
from prime_train.facts.gather import ProbeOptions, gather
from prime_train.programs import program_of
from prime_train.rules import judge
from prime_train.rules.judge import Verdict
from prime_train.spec import RunSpec
from prime_train.supervise.launch.program import Program, ProgramConfig
from prime_train.toml.document import Document
from prime_train.toml.edit import EditRefused, edited
from prime_train.views.findings import full


class Command(NamedTuple):
    """The arguments that name the run. --resume is not among them, because a repeated command resumes by itself."""

    config: str
    run_name: str | None
    overrides: tuple[str, ...]
    words: tuple[str, ...] = ()  # of a trainer's command line: it stands for a config, and `config` is empty

    @property
    def has_file(self) -> bool:
        """Whether the config can be read again."""
        return not self.words and self.config != detect.STDIN

    def read(self) -> tuple[str, str]:
        """(text, path to show) of the config. Raises UserError."""
        if not self.words:
            return read_config(self.config)
        from prime_train.programs.command.derive import derive  # here, because most runs have a config

        derived = derive(self.words, Path.cwd())
        for note in derived.notes:
            write_note(note)
        return derived.text, DERIVED

    def text(self, *more: str) -> str:
        """The command that continues the run. An assignment in `more` replaces an override of the same key."""
        keys = {assignment.partition("=")[0] for assignment in more}
        kept = [given for given in self.overrides if given.partition("=")[0].strip() not in keys]
        words = ["prime-train", "run"]
        for number, config in enumerate(() if self.words else split_config(self.config)):
            words += [MERGE, config] if number else [config]
        words += ["--run-name", self.run_name] if self.run_name is not None else []
        for assignment in (*kept, *more):
            words += ["--set", assignment]
        return shlex.join([*words, "--", *self.words] if self.words else words)


class CheckedConfig(NamedTuple):
    """A config without errors of its own. `text` is the config with --set and --run-name applied."""

    text: str
    spec: RunSpec
    run_dir: RunDir
    verdict: Verdict
    facts: Facts | None  # None with --no-validate

    def program(self, *, writes: bool, only_shown: bool = False) -> Program:
        """The program that trains or serves, as this config starts it. The options are those of Program.configured."""
        config = _config(self.verdict, self.text)
        return program_of(self.spec).configured(config, self.run_dir, writes=writes, only_shown=only_shown)


DERIVED = "run.toml"  # how messages name the config that a command line stands for
_UNCHECKED = "--no-validate: memory, disk, paths, model and data are not checked"


def check_config(
    command: Command,
    *,
    validate: bool,
    starts: bool = False,
    only_shown: bool = False,
    unchecked: str = _UNCHECKED,
    unwanted: tuple[str, ...] = (),
) -> CheckedConfig:
    """Read, judge and name the run. Prints findings; exits with code 1 if one is an error.

    `starts`: also start what the run will start (see ProbeOptions), if the run has no attempt yet.
    `only_shown`: return also a config that only this machine cannot run, because its plan is for another one.
    `unchecked`: the warning without `validate`; empty if the facts of this machine are not missed.
    `unwanted`: codes of rules that judge what the command itself sets.

    Facts are gathered only if the rules that need none find no error: gathering takes seconds.
    """
    written, path = command.read()
    reading = _apply(command, written, path)
    verdict = judge.judge_config(reading)
    left_out = (*unwanted, *_rules_left_out(verdict, command.config))
    named, facts = None, None
    if reading.run is not None and verdict.only(None, left_out).ok:
        named = program_of(reading.run).named(_config(verdict, ""), command.run_name)
        if validate:
            program = program_of(named[0])
            announce_interpreters(named[0])
            write_dir = program.write_dir(*named)
            manner = ProbeOptions(starts=starts and not named[1].attempt(1).exists())
            facts = gather(named[0], write_dir, judge.needs(), manner, program.run_folder)
        elif unchecked:
            write_note(f"warning: {unchecked}")
    verdict = judge.judge_rest(reading, verdict, facts).only(None, left_out)
    _show_findings(_at_written_lines(verdict, written, reading.document.text), command.config)
    if named is None or not (verdict.ok or only_shown):
        raise typer.Exit(ExitCode.FINDINGS)
    return CheckedConfig(reading.document.text, *named, verdict, facts)


def _apply(command: Command, text: str, path: str) -> Reading:
    """The reading of a config with --set and --run-name written into its text.

    A prime-rl config may have no key for a name, so --run-name is applied later, to the launcher's copy.
    """
    _refuse_bytes(command)
    if path.endswith(SUFFIXES):
        raise _refuse_foreign(detect.read(text, path))
    if command.overrides or command.run_name is not None:
        is_run_toml = detect.is_run_toml(Document.parse(text, path))
        values = parse_overrides(command.overrides, plain_keys=not is_run_toml)
        if command.run_name is not None and is_run_toml:
            values["run.name"] = command.run_name
        text = apply_overrides(text, path, values)
    reading = detect.read(text, path)
    if reading.foreign is not None:
        raise _refuse_foreign(reading)
    return reading


def _refuse_foreign(reading: Reading) -> UserError:
    from prime_train.config.foreign.read import refuse_command  # here, because a supervisor needs no YAML parser

    return refuse_command(reading, "a start")


def _refuse_bytes(command: Command) -> None:
    """Raise UserError for an argument in bytes that are no text, because a config is UTF-8."""
    named = [("--run-name", command.run_name or ""), *(("--set", assignment) for assignment in command.overrides)]
    for option, given in named:
        if not given.isascii() and given != given.encode(errors="replace").decode():
            raise UserError(
                what="it is not UTF-8",
                where=f"{option} {given.encode(errors='replace').decode()}",
                why="the value is written into the config, which is UTF-8",
                fix=f"give {option} in UTF-8",
            )


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


def _config(verdict: Verdict, text: str) -> ProgramConfig:
    assert verdict.run is not None
    return ProgramConfig(text, verdict.path, verdict.run, verdict.root)


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


def _at_written_lines(verdict: Verdict, written: str, judged: str) -> Verdict:
    """The verdict with the lines of the user's file. A line that --set inserts becomes the line before it."""
    if written == judged:
        return verdict
    from difflib import SequenceMatcher

    codes = SequenceMatcher(None, written.splitlines(), judged.splitlines(), autojunk=False).get_opcodes()

    def original(line: int) -> int:
        found = next((code for code in codes if code[3] < line <= code[4]), None)
        return line if found is None else max(1, min(found[1] + line - found[3], found[2]))

    return verdict._replace(
        findings=tuple(
            finding._replace(
                span=finding.span._replace(line=original(finding.span.line), end_line=original(finding.span.end_line))
            )
            for finding in verdict.findings
        )
    )


def _show_findings(verdict: Verdict, config: str) -> None:
    """Print errors and warnings, and the number of notes. A command has no file whose notes `validate` could show."""
    notes = sum(finding.severity is Severity.NOTE for finding in verdict.findings) if config else 0
    loud = tuple(finding for finding in verdict.findings if not (config and finding.severity is Severity.NOTE))
    text = full(verdict._replace(findings=loud, skipped=()), painter(sys.stderr))
    if text:
        write_note(text)
    if notes:
        write_note(f"{counted(notes, 'note')}: prime-train validate {shlex.quote(config)}")


_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_IN_A_TABLE = 2  # names in the path of a key; longer ones lead through an array, which --set does not enter
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")  # outside of all tables: prime-rl has such keys, run.toml has none


def parse_overrides(assignments: Sequence[str], *, plain_keys: bool = False, option: str = "--set ") -> dict[str, Any]:
    """Dotted keys to values; with `plain_keys` also keys without a dot. Raises UserError.

    A value is TOML, or one bare word, which becomes a string. `option`: what stands before each in the command.
    """
    return dict(_parse_override(assignment, plain_keys, option) for assignment in assignments)


def _parse_override(assignment: str, plain_keys: bool, option: str) -> tuple[str, Any]:
    key, separator, written = assignment.partition("=")
    key, written = key.strip(), written.strip()
    if not separator or not (_KEY.fullmatch(key) or (plain_keys and _PLAIN_KEY.fullmatch(key))):
        raise _not_an_assignment(assignment, key if separator else "", option)
    if written.lstrip("+-") in ("nan", "inf"):
        raise UserError(
            what=f"{written} is not a number that a setting can have",
            where=f"{option}{assignment}",
            why="nothing can be computed with it",
            fix=f"give a finite number: {option}{key}=1.0",
        )
    try:
        return key, tomli.loads(f"value = {written}")["value"]
    except tomli.TOMLDecodeError as error:
        if re.fullmatch(r"[\w./~:*@+-]+", written):  # a string without its quotes
            return key, written
        raise UserError(
            what=f"{written!r} is not a TOML value: {error.msg}",
            where=f"{option}{assignment}",
            why="a value that is neither TOML nor one plain word is ambiguous",
            fix=f"quote it for TOML and for the shell: {option}'{key}=\"...\"'",
        ) from None


def _not_an_assignment(assignment: str, key: str, option: str) -> UserError:
    """`key`: what stands before the =; a run.toml has each key in a table, which the fix names."""
    known = (path for path, _, _ in walk_fields(run_toml.schema()))
    meant = [".".join(path) for path in known if len(path) == _IN_A_TABLE and path[-1] == key]
    named = [f"{option}{name}={assignment.partition('=')[2]}" for name in meant]
    return UserError(
        what=f"{key!r} names no table of the config" if meant else f"{assignment!r} is not an assignment",
        where=f"{option}{assignment}",
        why="it takes a dotted key of the config, =, and a TOML value",
        fix=" or ".join(named) or f"for example: {option}run.max_steps=500, or {option}'eval.prompts=[\"import os\"]'",
    )


def apply_overrides(text: str, path: str, values: Mapping[str, Any]) -> str:
    """The text with every value set. A text that is not TOML is returned unchanged, because lint reports it.

    Raises UserError.
    """
    if Document.parse(text, path).fault is not None:
        return text
    for key, value in values.items():
        try:
            text = edited(text, {key: value})
        except EditRefused as error:
            raise UserError(
                what=f"{key} cannot be set in {path}",
                where=f"--set {key}",
                why=str(error),
                fix=f"write {key} into a copy of the file",
            ) from None
    return text
