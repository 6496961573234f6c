"""Reads launch scripts and command lines of other programs into parts. Runs nothing.

The parts are the directives of Slurm, the flags of launchers and those of each program that they start, the part
`launch` of each start (launch.py), and the part `shell` with its slips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.config.foreign import recognise
from prime_train.config.foreign.document import read_documents
from prime_train.config.foreign.launch import flags_of, read_launch
from prime_train.config.foreign.recognise import FileFormat
from prime_train.config.foreign.shell.script import ShellScript, parse_script
from prime_train.config.foreign.shell.slips import find_slips
from prime_train.config.foreign.shell.syntax import SCRIPT_CHARS
from prime_train.config.foreign.shell.values import Word
from prime_train.config.foreign.slurm import read_directives
from prime_train.config.foreign.starts import Start, read_start
from prime_train.config.foreign.values import COMMAND_LINE, ForeignPart, open_values
from prime_train.core.findings import TextSpan
from prime_train.registry.launchers import may_start_training
from prime_train.toml.document import Document, WrittenPlaces
from prime_train.toml.place import Comment, KeyPath, Place

MOST_STARTS = 200  # of a script; a sweep that is written out has some dozens
_MOST_SLIPS = 100
_MOVES = frozenset({"cd", "pushd"})
_COMMENT = re.compile(r"(?m)(?:^|(?<=[ \t]))#[^\n]*")
_STATEMENT = re.compile(r"(?m)^[ \t]*[^#\s]")
_GPUS = re.compile(r"(?:gpu:)?(?:[\w.-]+:)?(\d+)")
_REQUEUE = re.compile(r"scontrol\s+requeue")


def read_parts(text: str, path: str) -> tuple[ForeignPart, ...]:
    """The parts of a script; none if it starts no training that is known, and is no job of Slurm."""
    if len(text) > SCRIPT_CHARS or not may_start_training(text):
        return ()
    script = parse_script(text)
    starts = [start for command in script.commands if (start := read_start(command)) is not None]
    parts = _Parts(script, path)
    if parts.slurm is None:  # mpirun and srun start anything; without a job, only a known program is a training
        starts = [start for start in starts if start.program is not None or start.launcher is not None]
    if not starts and parts.slurm is None:
        return ()
    return tuple(parts.all(starts[:MOST_STARTS]))


def read_command(text: str) -> tuple[ForeignPart, ...]:
    """The parts of one command line, as `accelerate launch train.py --bf16 true`; none if it starts no training."""
    return read_parts(text, COMMAND_LINE)


class _Parts:
    def __init__(self, script: ShellScript, path: str) -> None:
        self._script = script
        self._path = path
        self._comments = tuple(_comments(script.text))
        self._changes_folder = any(command.name in _MOVES for command in script.commands)
        self.slurm = self._slurm()

    def all(self, starts: list[Start]) -> Iterator[ForeignPart]:
        if self.slurm is not None:
            yield self.slurm
        yield from self._files()
        for number, start in enumerate(starts, 1):
            yield from self._of_start(start, number, None if self.slurm is None else self.slurm.values)
        yield from self._slips()

    def _slips(self) -> Iterator[ForeignPart]:
        """A part for each slip; one without values where there is none, so that a lint names what it looked for."""
        slips = tuple(find_slips(self._script))[:_MOST_SLIPS]
        for slip in slips:
            place = Place(slip.span, slip.span, slip.lost)
            yield self._part("shell", {slip.kind: slip.lost}, {(slip.kind,): place})
        if not slips:
            yield self._part("shell", {}, {})

    def _of_start(self, start: Start, number: int, slurm: Mapping[str, Any] | None) -> Iterator[ForeignPart]:
        if start.program is not None:
            pointers = start.program.points_to
            if any(pointers[key] == start.program.format and key in start.arguments.values for key in pointers):
                start.arguments.values.is_partial = True  # the rest is in that file
            yield self._part(start.program.format, start.arguments.values, start.arguments.places, number)
        for format_, arguments in flags_of(start):
            if "config_file" in arguments.values:
                arguments.values.is_partial = True
            yield self._part(format_, arguments.values, arguments.places, number)
        facts, places = read_launch(start, slurm)
        name = start.name if start.launcher is None else start.launcher.word
        places.setdefault(("kind",), _place(name))
        for key in facts:
            places.setdefault((key,), _place(name))
        yield self._part("launch", facts, places, number)

    def _slurm(self) -> ForeignPart | None:
        """The directives, and under `batch` what the script itself does with the job."""
        directives = read_directives(self._script.text, self._script.heredocs)
        if directives is None:
            return None
        values, places = dict(directives.arguments.values), dict(directives.arguments.places)
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

    def _files(self) -> Iterator[ForeignPart]:
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
                    yield self._part(kind.name, values, {key: place for key, place in places.items() if place})

    def _part(
        self, format_: str, values: Mapping[str, Any], places: Mapping[KeyPath, Place], start: int = 0
    ) -> ForeignPart:
        document = Document(self._script.text, self._path, values, written=WrittenPlaces(places, self._comments))
        return ForeignPart(format_, values, document, start=start, moved=bool(start) and self._changes_folder)


def _keys(values: Mapping[str, Any], around: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in values.items():
        yield (*around, key)
        if isinstance(value, dict):
            yield from _keys(value, (*around, key))


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
