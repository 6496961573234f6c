"""Reads the words of a command line: its launcher, the script or module that trains, its flags. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_train.config.foreign.arguments import read_arguments
from prime_train.config.foreign.shell.trace import ShellCommand
from prime_train.config.foreign.shell.values import Piece, Word
from prime_train.config.foreign.starts import Start, read_start

_PROCESS_FLAGS = ("nproc_per_node", "num_processes", "num_gpus", "ntasks_per_node", "np", "n", "ntasks")
_MODULE = "-m"  # of Python
_CODE = "-c"
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")


@dataclass(frozen=True, slots=True)
class CommandStart:
    """What a command starts. Empty values are not known."""

    launcher: str = ""  # "torchrun"
    script: str = ""  # as written: "train.py"
    module: str = ""  # behind -m: "axolotl.cli.train"
    words: tuple[str, ...] = ()  # from the script, module or program on
    flags: Mapping[str, Any] = field(default_factory=dict)  # of the trainer, by name without dashes
    launcher_flags: Mapping[str, Any] = field(default_factory=dict)
    processes: int | None = None  # on this machine

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


def read_words(argv: Sequence[str]) -> CommandStart:
    """What the words of a command start. They are literal: no shell has read them."""
    words = tuple(Word((Piece(text, 1, number + 1),)) for number, text in enumerate(argv))
    start = read_start(ShellCommand(words, {}, 1, 1))
    if start is None:
        return _read_plain(argv)
    name = start.name.text
    at = next((number for number, word in enumerate(words) if word is start.name), 0)
    is_module = start.is_python and not name.endswith(".py") and "/" not in name
    return CommandStart(
        launcher=start.launcher.launcher.name if start.launcher is not None else "",
        script=name if start.is_python and not is_module else "",
        module=name if is_module else "",
        words=tuple(argv[at:]),
        flags=start.arguments.values,
        launcher_flags=start.launcher.arguments.values if start.launcher is not None else {},
        processes=_count_processes(start),
    )


def _read_plain(argv: Sequence[str]) -> CommandStart:
    """The script of `python script.py`, or the module of `python -m module`, without a launcher."""
    at = next((number for number, word in enumerate(argv) if _PYTHON.fullmatch(Path(word).name)), None)
    if at is None:
        return CommandStart(words=tuple(argv), processes=1)
    rest = list(argv[at + 1 :])
    while rest and rest[0].startswith("-") and rest[0] not in (_MODULE, _CODE):
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    if rest[:1] == [_MODULE]:
        return CommandStart(module=rest[1] if len(rest) > 1 else "", words=tuple(rest[1:]), processes=1)
    if not rest or rest[0] == _CODE:
        return CommandStart(words=tuple(argv[at:]), processes=1)
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
