"""Refuses a run directory whose folders are no folders of the run: links out of it, files, links to nothing."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir

_ATTEMPTS_DEPTH = 2  # attempts/NNN/evidence


def check_folders(run_dir: RunDir) -> None:
    """Raise UserError if a folder that the run writes is a symbolic link out of the run directory, or no folder.

    The directory itself may be reached by links. The folders of checkpoints have rules of their own, and so has
    what other programs keep deeper in the directory.
    """
    for needed in (run_dir.events, run_dir.attempt(0).parent, run_dir.checkpoints):
        if os.path.lexists(needed) and not needed.is_dir():
            raise UserError(
                what="it is not a folder",
                where=str(needed),
                why="the run keeps its events, logs or checkpoints in this folder, so it could not go on",
                fix=f"mv {shlex.quote(str(needed))} {shlex.quote(f'{needed}.aside')}",
            )
    root = os.path.realpath(run_dir.path)
    for link in (*_links(root), *_links(os.path.join(root, "attempts"), _ATTEMPTS_DEPTH)):  # noqa: PTH118 - strings
        target = os.path.realpath(link)
        if os.path.isdir(target) and os.path.commonpath([root, target]) != root:  # noqa: PTH112
            raise _leads_out(Path(link), Path(target))


def _links(folder: str, depth: int = 1) -> Iterator[str]:
    """The symbolic links in a folder, down to `depth` folders. Follows none; what cannot be read has none."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _links(entry.path, depth - 1)


def _leads_out(link: Path, target: Path) -> UserError:
    here, there = shlex.quote(str(link)), shlex.quote(str(target))
    return UserError(
        what=f"it is a symbolic link to {target}, outside the run directory",
        where=str(link),
        why="the run would write there, and delete there what it takes for its own",
        fix=f"rm {here} if it is not yours; else rm {here} && mv {there} {here}, or choose the other disk with run.dir",
    )
