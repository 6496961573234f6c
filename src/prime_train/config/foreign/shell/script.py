"""The commands that a bash script may run, and the files that it writes. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.config.foreign.shell.state import ShellState
from prime_train.config.foreign.shell.syntax import parse
from prime_train.config.foreign.shell.trace import Load, ShellCommand, TooMuch, Trace, script_text
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
    heredocs: tuple[tuple[int, int], ...] = ()  # where their texts begin and end


def parse_script(
    text: str, state: ShellState | None = None, outer: tuple[Word, ...] = (), load: Load | None = None
) -> ShellScript:
    """The commands of a script. Raises nothing.

    `state` has the variables and arguments that it gets, `outer` are the words of the command that starts it, and
    `load` reads the files that it sources; without it, each of them may set any variable.
    """
    source = script_text(text.replace("\r\n", "\n"))
    trace, tree = Trace(load), parse(source.text)
    unread, fault = tree.unread, tree.fault
    try:
        Walk(trace, state or ShellState(), source._replace(heredocs=tree.heredocs), outer).whole(tree.block)
    except (TooMuch, RecursionError):
        unread, fault = 0 if unread is None else unread, "it does more than can be followed"
    unread_line = None if unread is None else source.place(unread)[0]
    heredocs = tuple((heredoc.word.offset, heredoc.word.end) for heredoc in tree.heredocs)
    return ShellScript(source.text, tuple(trace.commands), trace.files, unread_line, fault, heredocs)
