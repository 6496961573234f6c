"""Reads launch scripts and command lines of other programs into parts. Runs nothing.

The parts are the directives of Slurm, the flags of launchers and those of each program that they start, the part
`launch` of each start (launch.py), and the part `shell` with its slips.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.config.foreign import recognise
from prime_train.config.foreign.arguments import Arguments
from prime_train.config.foreign.document import read_documents
from prime_train.config.foreign.follow import pointers
from prime_train.config.foreign.launch import flags_of, read_launch
from prime_train.config.foreign.nearby import MOVES, NearbyScripts
from prime_train.config.foreign.recognise import FileFormat
from prime_train.config.foreign.shell.script import ShellScript, parse_script
from prime_train.config.foreign.shell.slips import find_slips
from prime_train.config.foreign.shell.state import ShellState
from prime_train.config.foreign.shell.syntax import SCRIPT_CHARS
from prime_train.config.foreign.shell.trace import ShellCommand
from prime_train.config.foreign.shell.values import Word
from prime_train.config.foreign.slurm import read_directives, read_submission
from prime_train.config.foreign.starts import Start, read_script_start, read_start
from prime_train.config.foreign.values import COMMAND_LINE, ForeignPart, open_values
from prime_train.core.findings import TextSpan
from prime_train.registry.launchers import may_start_training
from prime_train.toml.document import Document, WrittenPlaces, value_at
from prime_train.toml.place import Comment, KeyPath, Place

MOST_STARTS = 200  # of a script; a sweep that is written out has some dozens
_MOST_SLIPS = 100
_MOST_DEPTH = 8  # scripts that start each other
_NAMES_SCRIPT = re.compile(r"\.(?:sh|bash|sbatch|slurm)\b")
Slurm = Mapping[str, Any] | None  # the directives of a job
_COMMENT = re.compile(r"(?m)(?:^|(?<=[ \t]))#[^\n]*")
_STATEMENT = re.compile(r"(?m)^[ \t]*[^#\s]")
_GPUS = re.compile(r"(?:gpu:)?(?:[\w.-]+:)?(\d+)")
_REQUEUE = re.compile(r"scontrol\s+requeue")


def read_parts(text: str, path: str, *, follows: bool = False) -> tuple[ForeignPart, ...]:
    """The parts of a script; none if it starts no training that is known, and is no job of Slurm.

    `follows`: with those of the scripts near it that it sources or starts.
    """
    if len(text) > SCRIPT_CHARS or not (may_start_training(text) or (follows and _NAMES_SCRIPT.search(text))):
        return ()
    return tuple(_Reader(path, follows=follows).read(_Target(text, path)))


def read_command(text: str) -> tuple[ForeignPart, ...]:
    """The parts of one command line, as `accelerate launch train.py --bf16 true`; none if it starts no training."""
    return read_parts(text, COMMAND_LINE, follows=True)


def list_commands(text: str, path: str) -> list[ShellCommand]:
    """The commands of a command line, and those of the scripts near it that it starts, in their order."""
    if len(text) > SCRIPT_CHARS:
        return []
    return list(_Reader(path, follows=True).list_commands(_Target(text, path)))


class _Target(NamedTuple):
    """A script that is read, and what it gets from the command that starts it: words, variables, a Slurm job."""

    text: str
    path: str
    command: ShellCommand | None = None
    arguments: tuple[Word, ...] | None = None
    slurm: Mapping[str, Any] | None = None  # directives of the job around it
    submission: Arguments | None = None  # flags of sbatch

    @property
    def state(self) -> ShellState:
        passed = {} if self.command is None else self.command.environment
        state = ShellState.with_environment({name: word.elsewhere().pieces for name, word in passed.items()})
        state.arguments = self.arguments
        return state

    @property
    def outer(self) -> tuple[Word, ...]:
        return () if self.command is None else (*self.command.outer, *self.command.words)


class _Reader:
    """Reads a script and those that it starts."""

    def __init__(self, path: str, *, follows: bool) -> None:
        self._nearby = NearbyScripts(path) if follows else None
        self._read = {path}
        self._starts = 0

    def read(self, target: _Target, depth: int = 0) -> list[ForeignPart]:
        """The parts of a script; none if nothing in it is known."""
        load = self._nearby.read if self._nearby is not None else None
        script = parse_script(target.text, target.state, target.outer, load)
        parts = _ScriptParts(script, target, {} if self._nearby is None else self._nearby.texts)
        slurm = target.slurm if parts.slurm is None else parts.slurm.values
        found: list[ForeignPart] = []
        for number, command in enumerate(script.commands):
            start = read_start(command)
            # mpirun and srun start anything; without a job, only a known program is a training
            is_training = start is not None and (slurm is not None or start.program or start.launcher)
            if start is not None and is_training and self._starts < MOST_STARTS:
                self._starts += 1
                found.extend(parts.of_start(start, self._starts, slurm))
            elif start is None and depth < _MOST_DEPTH:
                started = self._find_started(command, script.commands[:number], target, slurm)
                found.extend(self.read(started, depth + 1) if started is not None else ())
        return [*parts.around(found), *found, *parts.slips()] if found or parts.slurm is not None else []

    def list_commands(self, target: _Target, depth: int = 0) -> Iterator[ShellCommand]:
        load = self._nearby.read if self._nearby is not None else None
        script = parse_script(target.text, target.state, target.outer, load)
        for number, command in enumerate(script.commands):
            yield command
            if depth < _MOST_DEPTH:
                started = self._find_started(command, script.commands[:number], target, None)
                yield from self.list_commands(started, depth + 1) if started is not None else ()

    def _find_started(
        self, command: ShellCommand, before: Sequence[ShellCommand], target: _Target, slurm: Slurm
    ) -> _Target | None:
        """The script that a command starts, each once."""
        words = read_script_start(command) if self._nearby is not None else ()
        nearby = self._nearby.read(words[0], command.path or target.path, before) if words and self._nearby else None
        if nearby is None or nearby.path in self._read:
            return None
        self._read.add(nearby.path)
        arguments = tuple(word.elsewhere() for word in words[1:])
        flags = command.words[1 : len(command.words) - len(words)]
        is_job = command.name == "sbatch"
        return _Target(
            nearby.text,
            nearby.path,
            command._replace(outer=() if is_job else command.outer, words=() if is_job else command.words),
            arguments,
            None if is_job else slurm,
            read_submission(flags) if is_job else None,
        )


class _ScriptParts:
    """The parts of one script. `texts` has the files that it sources, by path."""

    def __init__(self, script: ShellScript, target: _Target, texts: Mapping[str, str]) -> None:
        self._script = script
        self._target = target
        self._texts = {**texts, "": script.text}
        self._comments: dict[str, tuple[Comment, ...]] = {}
        self._changes_folder = any(command.name in MOVES for command in script.commands)
        self.slurm = self._slurm()

    def around(self, starts: Sequence[ForeignPart]) -> Iterator[ForeignPart]:
        """The parts that belong to every start, or to the one that names a config. `starts`: the parts of all."""
        if self.slurm is not None:
            yield self.slurm
        yield from self._files(starts)

    def slips(self) -> Iterator[ForeignPart]:
        """A part for each slip; one without values where there is none, so that a lint names what it looked for."""
        slips = tuple(find_slips(self._script))[:_MOST_SLIPS]
        for slip in slips:
            place = Place(slip.span, slip.span, slip.lost)
            yield self._part("shell", {slip.kind: slip.lost}, {(slip.kind,): place})
        if not slips:
            yield self._part("shell", {}, {})

    def of_start(self, start: Start, number: int, slurm: Slurm) -> Iterator[ForeignPart]:
        path, name = start.command.path, start.name if start.launcher is None else start.launcher.word
        for arguments in (start.program and start.arguments, *(flags for _, flags in flags_of(start))):
            if arguments:
                arguments.places.setdefault((), _place(name))
        if start.program is not None:
            pointers = start.program.points_to
            if any(pointers[key] == start.program.format and key in start.arguments.values for key in pointers):
                start.arguments.values.is_partial = True  # the rest is in that file
            yield self._part(start.program.format, start.arguments.values, start.arguments.places, number, path)
        for format_, arguments in flags_of(start):
            if "config_file" in arguments.values:
                arguments.values.is_partial = True
            yield self._part(format_, arguments.values, arguments.places, number, path)
        facts, places = read_launch(start, slurm)
        for key in ((), ("kind",), *((key,) for key in facts)):
            places.setdefault(key, _place(name))
        yield self._part("launch", facts, places, number, path)

    def _slurm(self) -> ForeignPart | None:
        """The directives, and under `batch` what the script itself does with the job."""
        directives = read_directives(self._script.text, self._script.heredocs)
        if directives is None:
            return None
        values, places = dict(directives.arguments.values), dict(directives.arguments.places)
        if self._target.submission is not None:
            values |= self._target.submission.values
        commands = [each for each in self._script.commands if not each.outer or each.outer[0].text == "sbatch"]
        batch: dict[str, Any] = {
            "trap": any(command.name == "trap" for command in commands),
            "requeues": any(_REQUEUE.match(" ".join(word.text for word in command.words)) for command in commands),
        }
        gpus = next((values[key] for key in ("gpus_per_node", "gres", "gpus") if key in values), None)
        found = _GPUS.fullmatch(str(gpus))
        if found is not None:
            batch["gpus_per_node"] = int(found.group(1))
        if directives.late_line is not None:
            span = TextSpan(directives.late_line, 1, directives.late_line, len("#SBATCH") + 1)
            batch["ignored_line"] = directives.late_line
            places[("batch", "ignored_line")] = Place(span, span, "#SBATCH")
        return self._part("sbatch", {**values, "batch": batch}, places)

    def _files(self, starts: Sequence[ForeignPart]) -> Iterator[ForeignPart]:
        """The configs that the script itself writes with a heredoc."""
        for name, body in self._script.files.items():
            text = body.literal
            if text is None or not recognise.has_words(text):
                continue
            above = "\n" * (body.line - 1)  # so that the lines are those of the script
            for document in read_documents(above + text, name)[:1]:
                kind = None if document.fault is not None else recognise.recognise(document.values, text)
                if isinstance(kind, FileFormat):
                    values = open_values(document.values, exponents=kind.exponents, references=kind.references)
                    places = {key: document.place(key) for key in _keys(values)}
                    written = {key: place for key, place in places.items() if place}
                    first = TextSpan(body.line, 1, body.line, 2)
                    users = {part.start for part in starts if os.path.normpath(name) in _named(part)}
                    user = users.pop() if len(users) == 1 else 0
                    yield self._part(kind.name, values, {(): Place(first, first, name), **written}, user)

    def _part(
        self, format_: str, values: Mapping[str, Any], places: Mapping[KeyPath, Place], start: int = 0, path: str = ""
    ) -> ForeignPart:
        """A part of the script itself, or of the file at `path` that it sources."""
        text = self._texts[path]
        if path not in self._comments:
            self._comments[path] = tuple(_comments(text))
        written = WrittenPlaces(places, self._comments[path])
        document = Document(text, path or self._target.path, values, written=written)
        return ForeignPart(format_, values, document, start=start, moved=bool(start) and self._changes_folder)


def _keys(values: Mapping[str, Any], around: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in values.items():
        yield (*around, key)
        if isinstance(value, dict):
            yield from _keys(value, (*around, key))


def _named(part: ForeignPart) -> Iterator[str]:
    """The files that the keys of a part name."""
    values = (value_at(part.values, tuple(key.split("."))) for key in pointers(part.format))
    yield from (os.path.normpath(value) for value in values if isinstance(value, str))


def _place(word: Word) -> Place:
    span = TextSpan(word.line, word.column, word.line, word.column + max(1, len(word.text)))
    return Place(span, span, word.text[:60])


def _comments(text: str) -> Iterator[Comment]:
    """What looks like a comment: a # in a quoted text is one here, too."""
    first = _STATEMENT.search(text)
    line, at = 1, 0
    for found in _COMMENT.finditer(text):
        line, at = line + text.count("\n", at, found.start()), found.start()
        column = found.start() - text.rfind("\n", 0, found.start())
        yield Comment(line, found.group(), first is None or found.start() < first.start(), column)
