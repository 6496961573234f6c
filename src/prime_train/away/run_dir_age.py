"""Finds when a run directory changed last, on this machine or in a mounted bucket. Reads only names and times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_DEPTH = 3  # RUN/checkpoints/step_N/FILE
_ENTRIES = 20_000  # in a mounted bucket each entry may cost a request


def find_newest_change(folder: Path) -> float | None:
    """The newest modification time of a file below `folder`, in seconds since the epoch; None if there is no file.

    Symbolic links are not followed.
    """
    return max(islice(_times(str(folder), _DEPTH), _ENTRIES), default=None)


def _times(folder: str, depth: int) -> Iterator[float]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it was deleted, or may not be read
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from _times(entry.path, depth - 1)
            elif entry.is_file(follow_symlinks=False):
                yield entry.stat(follow_symlinks=False).st_mtime
        except OSError:
            continue
