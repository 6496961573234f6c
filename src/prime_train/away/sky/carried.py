"""Finds the local files and folders that a job gets as file_mounts. Looks at names only, opens no file."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prime_train.away.sky.refusals import LocalPath

_JOB_FOLDER = "~/prime-train-job"  # where the job's script runs: relative paths are below it
_INPUTS = frozenset({"path", "name", "file", "files", "data_files", "chat_template"})  # keys that a run reads from
_WILDCARDS = frozenset("*?[")


class CarriedPath(NamedTuple):
    """A path in the config that exists here. SkyPilot copies the local `source` to `target` on the job's machine."""

    local: LocalPath
    source: str
    target: str


def find_carried(found: Iterable[LocalPath], cwd: Path) -> tuple[CarriedPath, ...]:
    """The paths that a job can be given: regular files and folders that the run reads, below no hidden folder.

    A folder that the run writes is left out, and so are the home folder, the root, and what is outside `cwd` by a
    relative path: to copy them would give away more than the run needs.
    """
    every = (_carry(local, cwd) for local in found)
    return tuple(carried for carried in every if carried is not None)


def _carry(local: LocalPath, cwd: Path) -> CarriedPath | None:
    if local.key.rpartition(".")[2] not in _INPUTS or local.value.startswith("file://"):
        return None
    whole = Path(local.value)
    fixed = _before_wildcards(whole)
    source = (cwd / fixed.expanduser()).resolve()
    if not fixed.parts or ".." in fixed.parts or not _may_leave(source, cwd) or not _is_plain(source):
        return None
    own_place = fixed.is_absolute() or local.value.startswith("~")
    return CarriedPath(local, str(source), str(fixed) if own_place else f"{_JOB_FOLDER}/{fixed}")


def _before_wildcards(path: Path) -> Path:
    """The folder that holds everything that a pattern can match; the path itself if it is no pattern."""
    parts = []
    for part in path.parts:
        if _WILDCARDS & set(part):
            break
        parts.append(part)
    return Path(*parts)


def _may_leave(source: Path, cwd: Path) -> bool:
    """Whether the files may be copied to another machine: no secrets by their place, and not everything."""
    home = Path.home()
    hidden = any(part.startswith(".") for part in source.parts)
    holds_all = source in (home, cwd) or home.is_relative_to(source) or cwd.is_relative_to(source)
    return not hidden and not holds_all


def _is_plain(source: Path) -> bool:
    try:
        mode = source.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
