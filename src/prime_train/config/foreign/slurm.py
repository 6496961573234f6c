"""Reads the #SBATCH lines of a script into values with the places of each. Runs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from prime_train.config.foreign.arguments import Arguments, read_launcher_flags
from prime_train.config.foreign.shell.values import Piece, Word
from prime_train.registry.launchers import TrainingLauncher, launchers

_LINE = re.compile(r"(?m)^#SBATCH[ \t]+(.*)$")
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"[^"\n]*"|'[^'\n]*')+""")
_STATEMENT = re.compile(r"(?m)^[ \t]*[^#\s]")
_SWITCHES = frozenset({"wait", "parsable", "test_only"})


class Directives(NamedTuple):
    """The directives that count, and the line of the first one behind a command, which sbatch ignores."""

    arguments: Arguments
    late_line: int | None


def read_directives(text: str, heredocs: Sequence[tuple[int, int]] = ()) -> Directives | None:
    """The #SBATCH lines of a script, or those of a job that it writes into a heredoc; None if it has none."""
    lines = list(_LINE.finditer(text))
    outside = [found for found in lines if not any(start <= found.start() < end for start, end in heredocs)]
    if outside:
        return _read(text, outside, (0, len(text)), expands=False)
    for start, end in heredocs:
        inside = [found for found in lines if start <= found.start() < end]
        if inside:
            return _read(text, inside, (start, end), expands=True)
    return None


def read_submission(words: Sequence[Word]) -> Arguments:
    """The flags of an `sbatch` command, which overrule the directives of the script."""
    return read_launcher_flags(words, _sbatch())[0]


def _read(text: str, lines: list[re.Match[str]], part: tuple[int, int], *, expands: bool) -> Directives:
    """The directives in a part of the text. `expands`: the shell puts in variables before sbatch reads them."""
    first_statement = _STATEMENT.search(text, *part)
    end = first_statement.start() if first_statement is not None else part[1]
    words: list[Word] = []
    late_line, line, at = None, 1, 0
    for found in lines:
        line, at = line + text.count("\n", at, found.start()), found.start()
        if found.start() >= end:
            late_line = late_line or line
            continue
        words.extend(_words(found.group(1), line, found.start(1) - found.start() + 1, expands=expands))
    return Directives(read_launcher_flags(words, _sbatch())[0], late_line)


def _sbatch() -> TrainingLauncher:
    srun = next(launcher for launcher in launchers() if launcher.name == "srun")
    short = {**srun.short, "a": "array", "W": "wait", "b": "begin", "L": "licenses", "M": "clusters"}
    return srun._replace(name="sbatch", switches=srun.switches | _SWITCHES, short=short, behind_dashes=True)


def _words(text: str, line: int, column: int, *, expands: bool) -> list[Word]:
    """The words of one line, up to a comment."""
    found = []
    for word in _WORD.finditer(text):
        if word.group().startswith("#"):
            break
        try:
            value = "".join(shlex.split(word.group()))
        except ValueError:
            value = word.group()
        found.extend(_pieces(value, line, column + word.start(), expands=expands))
    return found


def _pieces(value: str, line: int, column: int, *, expands: bool) -> list[Word]:
    """A word; its part from the first variable on is open."""
    at = value.find("$") if expands else -1
    if at < 0:
        return [Word((Piece(value, line, column),))]
    known, rest = Piece(value[:at], line, column), Piece(value[at:], line, column + at, is_open=True)
    return [Word((known, rest) if at else (rest,))]
