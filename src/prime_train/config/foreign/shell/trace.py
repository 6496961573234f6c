"""What was found in a script so far, and how many steps are left. Runs nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prime_train.config.foreign.shell.tree import Heredoc
from prime_train.config.foreign.shell.values import Word

_MOST_STEPS = 100_000  # of a script: pieces of words, and copies of its variables


class ShellCommand(NamedTuple):
    """A command that the script may run.

    `environment` has the variables that the script gives to it. `outer` are the words of the command that starts this
    one as a quoted text, such as `srun bash -c "..."`. `path` is the file that has it, "" for the script itself.
    """

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    line: int
    column: int
    outer: tuple[Word, ...] = ()
    path: str = ""

    @property
    def name(self) -> str:
        """The first word; "" if it is not known."""
        return self.words[0].literal or "" if self.words else ""


class ScriptText(NamedTuple):
    """A text that is followed. `place` gives (line, column) of an offset in it, `path` is the file that has it."""

    text: str
    place: Callable[[int], tuple[int, int]]
    heredocs: Sequence[Heredoc] = ()
    path: str = ""


def script_text(text: str, path: str = "") -> ScriptText:
    """The text of a whole file."""
    starts = [0, *accumulate(len(part) + 1 for part in text.split("\n"))]

    def place(offset: int) -> tuple[int, int]:
        row = bisect_right(starts, offset) - 1
        return row + 1, offset - starts[row] + 1

    return ScriptText(text, place, path=path)


class TooMuch(Exception):
    """The script has more steps than are followed."""


# (word that names a file, path of the script around it, commands before) -> (path, text) of a sourced script
Load = Callable[[Word, str, Sequence[ShellCommand]], tuple[str, str] | None]


class Trace:
    """What was found so far, and the steps that are left."""

    def __init__(self, load: Load | None = None) -> None:
        self.load: Load = load or (lambda *_: None)
        self.commands: list[ShellCommand] = []
        self.files: dict[str, Word] = {}  # by their literal name; those of the script itself
        self.called: set[str] = set()
        self.sourcing: set[str] = set()  # the files that are being followed
        self._steps = _MOST_STEPS

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooMuch
