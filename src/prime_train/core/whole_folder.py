"""Writes a folder that appears under its name complete or not at all. Knows nothing of its content."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prime_train.core.rundir import sync


@contextmanager
def write_folder(folder: Path, *, replaces: bool) -> Iterator[Path]:
    """Yields an empty folder beside `folder`; when the block ends, its files are on the disk and it has the name.

    A block that raises leaves nothing. A folder that exists is replaced, or unless `replaces` FileExistsError is
    raised. One process at a time may write the same folder.
    """
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)  # left by a killed process
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in [*beside.iterdir(), beside]:
            sync(path)
        if replaces:
            _replace(folder, beside)
        elif os.path.lexists(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        else:
            beside.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(folder.with_name(f".{folder.name}.replaced"), ignore_errors=True)


def _replace(folder: Path, beside: Path) -> None:
    """Replace `folder` by `beside`. A directory cannot be renamed onto one that is not empty."""
    aside = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    beside.rename(folder)
