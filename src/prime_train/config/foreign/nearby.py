"""Reads the scripts that a script sources or starts, where it is certain which files these are. Runs nothing.

A file is read if its name is written out, it is a regular file below the working directory or the folder of the first
script, and nothing before has changed the folder, except to the script's own. The number of files is bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from prime_train.config.foreign.follow import find_file
from prime_train.config.foreign.shell.syntax import SCRIPT_CHARS
from prime_train.config.foreign.shell.trace import ShellCommand
from prime_train.config.foreign.shell.values import Word
from prime_train.core import outside

# ruff: noqa: PTH117, PTH118, PTH120 - paths are texts here

_MOST_FILES = 16  # of one script; a sweep that starts more is judged by these
MOVES = frozenset({"cd", "pushd", "popd"})
_OWN_FOLDER = re.compile(r"dirname.*(?:\$0|\$\{0\}|BASH_SOURCE)", re.DOTALL)


class NearbyScript(NamedTuple):
    path: str
    text: str


class NearbyScripts:
    """The scripts near the one at `path`. `texts` has those that were read, by path."""

    def __init__(self, path: str) -> None:
        self.texts: dict[str, str] = {}
        self._path = path
        self._itself = os.path.realpath(path)
        self._roots = tuple(f"{os.path.realpath(folder or '.')}/" for folder in (".", os.path.dirname(path)))
        self._left = _MOST_FILES

    def read(self, name: Word, around: str, before: Sequence[ShellCommand]) -> NearbyScript | None:
        """The script that a word names in the script at `around`, "" for the first one; None if that is not certain.

        `before` are the commands in front of it.
        """
        path = self._find(name, around or self._path, before)
        real = "" if path is None else os.path.realpath(path)
        if path is None or not self._left or not real.startswith(self._roots) or real == self._itself:
            return None
        self._left -= 1
        try:
            text = outside.read_text(path, SCRIPT_CHARS)
        except (OSError, ValueError):
            return None
        self.texts[path] = text
        return NearbyScript(path, text)

    def _find(self, name: Word, around: str, before: Sequence[ShellCommand]) -> str | None:
        beside = _below_own_folder(name)
        moves = [command for command in before if command.name in MOVES]
        is_own = all(len(move.words) == 2 and _below_own_folder(move.words[1]) == "" for move in moves)
        if beside is None and name.literal is not None and is_own:
            if not moves:
                return find_file(name.literal, around)
            beside = name.literal
        if not beside or os.path.isabs(beside):
            return None
        path = os.path.normpath(os.path.join(os.path.dirname(around), beside))
        return path if os.path.isfile(path) else None  # noqa: PTH113 - a text


def _below_own_folder(word: Word) -> str | None:
    """The name behind `$(dirname "$0")/`, "" for that folder itself; None for any other word."""
    pieces = [piece for piece in word.pieces if piece.text]
    if not pieces:
        return None
    first, *rest = pieces
    if not first.is_open or _OWN_FOLDER.search(first.text) is None or any(piece.is_open for piece in rest):
        return None
    return "".join(piece.text for piece in rest).removeprefix("/")
