"""Finds slips of the pen in a script that lose flags: a comment in a continued command, a dash that is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from prime_train.config.foreign.shell.script import ShellScript
from prime_train.config.foreign.shell.trace import ShellCommand
from prime_train.config.foreign.shell.values import Word
from prime_train.core.findings import TextSpan

_TYPOGRAPHIC = "\u2013\u2014\u2018\u2019\u201c\u201d\u2212"
_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_]\w*(?:\.\w+)+=", re.ASCII)  # of Hydra: no command has such a name
_MOST_SHOWN = 40


class Slip(NamedTuple):
    """What is wrong at a place. kind: `comment`, `empty_line`, `blank_behind_backslash` or `typographic`.

    `lost` is the first flag that the command does not get.
    """

    kind: str
    span: TextSpan
    lost: str


def find_slips(script: ShellScript) -> Iterator[Slip]:
    lines = script.text.split("\n")
    for command in script.commands:
        if command.path:
            continue  # a file that the script sources has a lint of its own
        if not command.outer and _is_flag(command.words[0]):
            slip = _find_break(command, lines)
            if slip is not None:
                yield slip
        for word in command.words:
            text = word.text
            if text[:1] in _TYPOGRAPHIC and text and not word.is_open:
                span = TextSpan(word.line, word.column, word.line, word.column + len(text))
                yield Slip("typographic", span, text[:_MOST_SHOWN])


def _is_flag(word: Word) -> bool:
    """Whether a word is an argument of a program, and cannot be a command."""
    known = word.pieces[0].text if word.pieces and not word.pieces[0].is_open else ""
    return _OVERRIDE.match(known) is not None or (known.startswith("--") and not word.is_open)


def _find_break(command: ShellCommand, lines: list[str]) -> Slip | None:
    """Why a command begins with a flag: the line above was meant to go on. None if it was not."""
    lost, row = command.words[0].text[:_MOST_SHOWN], command.line - 2
    kind, at = "", row
    while row >= 0 and (not lines[row].strip() or lines[row].lstrip().startswith("#")):
        kind, at = ("comment" if lines[row].strip() else "empty_line"), row
        row -= 1
    if row < 0:
        return None
    above = lines[row]
    if not kind and above.rstrip() != above and above.rstrip().endswith("\\"):
        kind, at = "blank_behind_backslash", row
    elif not (kind and above.rstrip().endswith("\\")):
        return None
    return Slip(kind, TextSpan(at + 1, 1, at + 1, len(lines[at]) + 1), lost)
