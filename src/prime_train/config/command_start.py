"""Reads the words of a command line: its launcher, the script or module that trains, its flags. Runs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prime_train.config.foreign import scripts
from prime_train.config.foreign.arguments import read_arguments
from prime_train.config.foreign.nearby import MOVES
from prime_train.config.foreign.shell.made_texts import SHELLS, quoted_script
from prime_train.config.foreign.shell.trace import ShellCommand
from prime_train.config.foreign.shell.values import Piece, Word
from prime_train.config.foreign.starts import Start, read_script_start, read_start
from prime_train.config.foreign.values import COMMAND_LINE, SHELL_SUFFIXES, Open

_PROCESS_FLAGS = ("nproc_per_node", "num_processes", "num_gpus", "ntasks_per_node", "np", "n", "ntasks")
_MODULE = "-m"  # of Python
_CODE = "-c"
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_OPEN = re.compile(r"[$`*?]")
_LAST = "--the-last-word"  # where it arrives shows whether a script passes its words on
_FIRST_WORDS = 4  # `srun env A=1 bash train.sh`


@dataclass(frozen=True, slots=True)
class CommandStart:
    """What a command starts. Empty values are not known."""

    launcher: str = ""  # "torchrun"
    script: str = ""  # as written: "train.py"
    module: str = ""  # behind -m: "axolotl.cli.train"
    words: tuple[str, ...] = ()  # from the script, module or program on; an open one as it is written
    flags: Mapping[str, Any] = field(default_factory=dict)  # of the trainer, by name without dashes
    launcher_flags: Mapping[str, Any] = field(default_factory=dict)
    processes: int | None = None  # on this machine
    of_script: bool = False  # a shell script has the words; they may hold variables
    passes_on: bool = True  # a word that is added to the command reaches the training
    moved: bool = False  # the script changes its folder before
    devices: str = ""  # "gpu", "auto" or "cpu": there is a process for each of this machine

    def is_known(self, path: str) -> bool:
        """Whether a path among the words is certain: no variable is in it, and it is not below an unknown folder."""
        is_open = self.of_script and _OPEN.search(path) is not None
        return not is_open and not (self.moved and not Path(path).is_absolute())

    @property
    def name(self) -> str:
        """A short name: the stem of the script, or the last part of the module or program."""
        if self.script:
            return Path(self.script).stem
        return self.module.rpartition(".")[2] or (Path(self.words[0]).stem if self.words else "command")

    def flag(self, *names: str) -> str:
        """The value of the first of these flags that is set, as text; "" if none is. Names may have dashes."""
        for name in names:
            for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
                key, has_value, value = word.partition("=")
                if key == name:
                    return value if has_value else following
        return ""


def read_command(argv: Sequence[str], cwd: Path) -> CommandStart:
    """What a command in a folder starts. A shell script among the words is read, and never run.

    A script with several trainings shows none. A word that only a run of the script decides is not known.
    """
    start = read_words(argv)
    if start.script or start.module or not _names_shell(argv):
        return start
    line = shlex.join((*argv, _LAST))
    commands = scripts.list_commands(line, str(cwd / COMMAND_LINE))
    found = [command for command in commands[1:] if command.words and not _is_wrapper(command)]
    launched = [command for command in found if (begun := read_start(command)) is not None and begun.layers]
    trainings = launched or [command for command in found if _starts_python(command)]
    if len(trainings) != 1:
        return replace(start, processes=None)
    before = commands[: commands.index(trainings[0])]
    passes_on = any(word.text == _LAST for word in trainings[0].words)
    words = tuple(_open_defaults(word) for word in trainings[0].words if word.text != _LAST)
    moved = any(command.name in MOVES for command in before)
    return replace(_read_shell(trainings[0]._replace(words=words)), of_script=True, passes_on=passes_on, moved=moved)


def _open_defaults(word: Word) -> Word:
    """The word without what the environment may replace: `${NAME:-text}`."""
    pieces = (
        piece._replace(text=f"${{{piece.text}}}", is_open=True, is_default=False) if piece.is_default else piece
        for piece in word.pieces
    )
    return Word(tuple(pieces), word.many)


def read_words(argv: Sequence[str]) -> CommandStart:
    """What the words of a command start. They are literal: no shell has read them."""
    return _read_shell(ShellCommand(tuple(Word((Piece(text, 1, n + 1),)) for n, text in enumerate(argv)), {}, 1, 1))


def _names_shell(argv: Sequence[str]) -> bool:
    """Whether a shell, or a file that is a shell script by its name, is among the first words."""
    return any(Path(word).name in SHELLS or word.endswith(SHELL_SUFFIXES) for word in argv[:_FIRST_WORDS])


def _is_wrapper(command: ShellCommand) -> bool:
    """Whether a command starts another shell, whose commands follow."""
    return bool(read_script_start(command)) or bool(quoted_script(command))


def _starts_python(command: ShellCommand) -> bool:
    names = [word.base for word in command.words[:_FIRST_WORDS]]
    return any(_PYTHON.fullmatch(name) for name in names) or read_start(command) is not None


def _read_shell(command: ShellCommand) -> CommandStart:
    words = command.words
    argv = tuple(word.text for word in words)
    start = read_start(command)
    if start is None:
        return _read_plain(argv)
    name = start.name.text
    at = next((number for number, word in enumerate(words) if word is start.name), 0)
    is_module = start.is_python and not name.endswith(".py") and "/" not in name
    return CommandStart(
        launcher=start.launcher.launcher.name if start.launcher is not None else "",
        script=name if start.is_python and not is_module else "",
        module=name if is_module else "",
        words=argv[at:],
        flags=start.arguments.values,
        launcher_flags=start.launcher.arguments.values if start.launcher is not None else {},
        processes=_count_processes(start),
        devices=_name_devices(start),
    )


def _read_plain(argv: tuple[str, ...]) -> CommandStart:
    """The script of `python script.py`, or the module of `python -m module`, without a launcher."""
    at = next((number for number, word in enumerate(argv) if _PYTHON.fullmatch(Path(word).name)), None)
    if at is None:
        return CommandStart(words=argv, processes=1)
    rest = list(argv[at + 1 :])
    while rest and rest[0].startswith("-") and rest[0] not in (_MODULE, _CODE):
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    if rest[:1] == [_MODULE]:
        return CommandStart(module=rest[1] if len(rest) > 1 else "", words=tuple(rest[1:]), processes=1)
    if not rest or rest[0] == _CODE:
        return CommandStart(words=argv[at:], processes=1)
    words = tuple(Word((Piece(text, 1, 1),)) for text in rest[1:])
    return CommandStart(script=rest[0], words=tuple(rest), flags=read_arguments(words).values, processes=1)


def _count_processes(start: Start) -> int | None:
    """The processes that the launcher starts here; None where the words do not show it."""
    if start.launcher is None:
        return 1
    values = start.launcher.arguments.values
    found = next((values[flag] for flag in _PROCESS_FLAGS if flag in values), None)
    if found is None:
        return 1 if start.launcher.launcher.kind == "torchrun" else None
    return found if isinstance(found, int) and found > 0 else None


def _name_devices(start: Start) -> str:
    if start.launcher is None or start.launcher.launcher.kind != "torchrun":
        return ""
    given = start.launcher.arguments.values.get("nproc_per_node")
    text = given.text if isinstance(given, Open) else given
    return text if text in ("gpu", "auto", "cpu") else ""
