"""What was found in a script so far, and how many steps are left. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from prime_train.config.foreign.shell.tree import Heredoc
from prime_train.config.foreign.shell.values import Word

_MOST_STEPS = 100_000  # of a script: pieces of words, and copies of its variables


class ShellCommand(NamedTuple):
    """A command that the script may run.

    `environment` has the variables that the script gives to it. `outer` are the words of the command that starts this
    one as a quoted text, such as `srun bash -c "..."`.
    """

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    line: int
    column: int
    outer: tuple[Word, ...] = ()

    @property
    def name(self) -> str:
        """The first word; "" if it is not known."""
        return self.words[0].literal or "" if self.words else ""


class ScriptText(NamedTuple):
    """A text that is followed. `place` gives (line, column) of an offset in it."""

    text: str
    place: Callable[[int], tuple[int, int]]
    heredocs: Sequence[Heredoc]


class TooMuch(Exception):
    """The script has more steps than are followed."""


class Trace:
    """What was found so far, and the steps that are left."""

    def __init__(self) -> None:
        self.commands: list[ShellCommand] = []
        self.files: dict[str, Word] = {}  # by their literal name
        self.called: set[str] = set()
        self._steps = _MOST_STEPS

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooMuch
