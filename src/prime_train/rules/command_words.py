"""Judges the command of a run.toml as a launch script with the same words, and the scripts and configs that it names.

A finding on a word is placed at this word in command.argv; one on a script or a config stays there. Runs nothing.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from prime_train.config.foreign import read as foreign
from prime_train.config.foreign.values import COMMAND_LINE
from prime_train.config.parsed_config import Reading
from prime_train.core.findings import NO_PATCH, Finding
from prime_train.spec.command import CommandSpec

_ARGV = ("command", "argv")


def find_in_words(
    command: CommandSpec, reading: Reading, judge: Callable[[Reading], Sequence[Finding]]
) -> Iterator[Finding]:
    """The findings on the words of a command. `judge` gives those of a reading of another program's config."""
    quoted = [shlex.quote(word) for word in command.argv]
    path = str(Path(command.cwd, COMMAND_LINE))  # beside what the words name
    script = foreign.read(" ".join(quoted), path)
    if script is None:
        return
    starts = [0, *accumulate(len(word) + 1 for word in quoted)]
    lines = [0, *accumulate(len(line) + 1 for line in script.document.text.split("\n"))]
    for finding in judge(script):
        if finding.path != path:
            yield finding
            continue
        at = lines[finding.span.line - 1] + finding.span.column - 1
        yield _at_word(finding, reading, min(bisect_right(starts, at), len(quoted)) - 1)


def _at_word(finding: Finding, reading: Reading, number: int) -> Finding:
    place = reading.document.place((*_ARGV, number)) or reading.document.nearest(_ARGV)
    key = ".".join((*_ARGV, str(number)))
    moved = finding._replace(path=reading.document.path, key=key, field="", patch=NO_PATCH, safe=False)
    if place is None:
        return moved
    start, end = place.key, place.value
    span = start._replace(end_line=end.end_line, end_column=end.end_column)
    return moved._replace(span=span, written=place.written)
