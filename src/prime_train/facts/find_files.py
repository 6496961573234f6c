"""Finds the files that a folder or a glob stands for, within a number of entries and of seconds. Reads no file.

A glob can stand for the whole machine, and a network disk may need seconds for a folder. So a search that is longer
than any data set needs ends with an error, and what it would have found is not known.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import translate
from typing import NamedTuple


class SearchBounds(NamedTuple):
    """How long the search for the files of a run may be."""

    files: int = 100_000  # that match, of one source
    entries: int = 1_000_000  # that are looked at, whether they match or not
    seconds: float = 10.0


USUAL = SearchBounds()


class EndlessSearchError(OSError):
    """A search was ended. What it has found is not all."""

    def __init__(self, limit: str) -> None:
        self.what = f"the search for files was ended after {limit}"
        super().__init__(errno.ETIMEDOUT, self.what)


class FileSearch:
    """The search for all files of a run, so that many endless globs take no longer than one.

    The iterators raise EndlessSearchError.
    """

    def __init__(self, bounds: SearchBounds = USUAL) -> None:
        self.bounds = bounds
        self._entries = 0
        self._until_s = time.monotonic() + bounds.seconds

    def walk(self, folder: str) -> Iterator[str]:
        """The files below a folder, but for those whose name begins with a dot. Follows no link to a folder."""
        waiting = [folder]
        while waiting:
            for entry in self._list(waiting.pop()):
                if not _is_folder(entry):
                    if not entry.name.startswith("."):
                        yield entry.path
                elif not entry.is_symlink():
                    waiting.append(entry.path)

    def match(self, pattern: str) -> Iterator[str]:
        """What a glob stands for, as `glob.iglob(pattern, recursive=True)`, but in another order."""
        parts = [part for part in pattern.split("/") if part]
        waiting = [("/" if pattern.startswith("/") else "", 0)]
        while waiting and not pattern.endswith("/"):
            folder, number = waiting.pop()
            part, is_last = parts[number], number == len(parts) - 1
            if not glob.has_magic(part):
                if not is_last:
                    waiting.append((f"{folder}{part}/", number + 1))
                elif os.path.lexists(folder + part):
                    yield folder + part
                continue
            is_deep = part == "**"
            if is_deep and not is_last:
                waiting.append((folder, number + 1))
            matches = re.compile(translate(part)).match
            for entry in self._list(folder or "."):
                name = entry.name
                if not matches(name) or (name.startswith(".") and (is_deep or not part.startswith("."))):
                    continue
                if is_last:
                    yield folder + name
                if (is_deep or not is_last) and _is_folder(entry):
                    waiting.append((f"{folder}{name}/", number if is_deep else number + 1))

    def _list(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """The entries of a folder; none of one that cannot be read."""
        self._count(0)
        try:
            entries = os.scandir(folder)
        except OSError:
            return
        with entries:
            for entry in entries:
                self._count(1)
                yield entry

    def _count(self, entries: int) -> None:
        self._entries += entries
        if self._entries > self.bounds.entries:
            raise EndlessSearchError(f"{self.bounds.entries:,} entries")
        if time.monotonic() > self._until_s:
            raise EndlessSearchError(f"{self.bounds.seconds:g} s")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link that leads to itself
        return entry.is_dir()
    return False
