"""The commands that a bash script may run, and the files that it writes. Runs nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from prime_train.config.foreign.shell.state import ShellState
from prime_train.config.foreign.shell.syntax import parse
from prime_train.config.foreign.shell.trace import ScriptText, ShellCommand, TooMuch, Trace
from prime_train.config.foreign.shell.values import Word
from prime_train.config.foreign.shell.walk import Walk


class ShellScript(NamedTuple):
    """What a script does. `files` maps the literal name of a file to the text that the script writes into it.

    `unread_line` is the line from which on bash runs nothing, because of `fault`; None without one.
    """

    text: str
    commands: tuple[ShellCommand, ...]
    files: Mapping[str, Word]
    unread_line: int | None = None
    fault: str = ""
    first_line: int = 1  # of the text, in a file around it
    heredocs: tuple[tuple[int, int], ...] = ()  # where their texts begin and end


def parse_script(text: str, line: int = 1, column: int = 1) -> ShellScript:
    """The commands of a script. `line` and `column` are the place of the text in a file around it. Raises nothing."""
    text = text.replace("\r\n", "\n")
    starts = [0, *accumulate(len(part) + 1 for part in text.split("\n"))]

    def place(offset: int) -> tuple[int, int]:
        row = bisect_right(starts, offset) - 1
        return line + row, column + offset - starts[row]

    trace, tree = Trace(), parse(text)
    unread, fault = tree.unread, tree.fault
    try:
        Walk(trace, ShellState(), ScriptText(text, place, tree.heredocs)).whole(tree.block)
    except (TooMuch, RecursionError):
        unread, fault = 0 if unread is None else unread, "it does more than can be followed"
    unread_line = None if unread is None else place(unread)[0]
    heredocs = tuple((heredoc.word.offset, heredoc.word.end) for heredoc in tree.heredocs)
    return ShellScript(text, tuple(trace.commands), trace.files, unread_line, fault, line, heredocs)
