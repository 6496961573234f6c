"""Reads the #SBATCH lines of a script into values with the places of each. Runs nothing."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from prime_train.config.foreign.arguments import Arguments, read_launcher_flags
from prime_train.config.foreign.shell.values import Piece, Word
from prime_train.registry.launchers import Launcher, launchers

_LINE = re.compile(r"(?m)^#SBATCH[ \t]+(.*)$")
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"[^"\n]*"|'[^'\n]*')+""")
_STATEMENT = re.compile(r"(?m)^[ \t]*[^#\s]")
_SWITCHES = frozenset({"wait", "parsable", "test_only"})


class Directives(NamedTuple):
    """The directives that count, and the line of the first one behind a command, which sbatch ignores."""

    arguments: Arguments
    late_line: int | None


def read_directives(text: str) -> Directives | None:
    """The #SBATCH lines of a script; None if it has none."""
    first_statement = _STATEMENT.search(text)
    end = first_statement.start() if first_statement is not None else len(text)
    words: list[Word] = []
    late_line, line, at = None, 1, 0
    for found in _LINE.finditer(text):
        line, at = line + text.count("\n", at, found.start()), found.start()
        if found.start() >= end:
            late_line = late_line or line
            continue
        words.extend(_words(found.group(1), line, found.start(1) - found.start() + 1))
    if not words and late_line is None:
        return None
    return Directives(read_launcher_flags(words, _sbatch())[0], late_line)


def _sbatch() -> Launcher:
    srun = next(launcher for launcher in launchers() if launcher.name == "srun")
    short = {**srun.short, "a": "array", "W": "wait", "b": "begin", "L": "licenses", "M": "clusters"}
    return srun._replace(name="sbatch", switches=srun.switches | _SWITCHES, short=short, behind_dashes=True)


def _words(text: str, line: int, column: int) -> list[Word]:
    """The words of one line, up to a comment."""
    found = []
    for word in _WORD.finditer(text):
        if word.group().startswith("#"):
            break
        try:
            value = "".join(shlex.split(word.group()))
        except ValueError:
            value = word.group()
        # %j and the like are filled in by Slurm; sbatch expands no variable
        found.append(Word((Piece(value, line, column + word.start()),)))
    return found
