"""Finds what a kill during a save left in the folder for temporary files. Deletes nothing.

Lightning writes each checkpoint there first and renames it: after N kills N files of up to a checkpoint's size stay,
which nothing ever removes.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from prime_train.core import outside

_BEGINNING = b"PK\x03\x04"  # of a file of torch.save
_MOST_ENTRIES = 100_000  # of a shared folder for temporary files


class LeftoverFile(NamedTuple):
    path: Path
    size_bytes: int
    changed_s: float  # since the epoch


def find_leftovers(folder: Path, names: Sequence[str]) -> list[LeftoverFile]:
    """The user's own files in `folder` with one of these patterns as name that begin as a file of torch.save.

    One of them may be written at this moment. A folder that cannot be read has none.
    """
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in _match(islice(entries, _MOST_ENTRIES), names):
            with suppress(OSError):  # it is gone, or not readable
                status = entry.stat(follow_symlinks=False)
                is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if is_own and _begins_as_zip(Path(entry.path), folder):
                    found.append(LeftoverFile(Path(entry.path), status.st_size, status.st_mtime))
    return sorted(found)


def _match(entries: Iterator[os.DirEntry[str]], names: Sequence[str]) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in entries if any(fnmatch.fnmatchcase(entry.name, name) for name in names))


def _begins_as_zip(path: Path, folder: Path) -> bool:
    with outside.open_regular(path, folder) as file:
        return file.read(len(_BEGINNING)) == _BEGINNING
