"""Finds runs by name or path. Reads directories only; never opens a run's files."""

from __future__ import annotations

from pathlib import Path

from prime_train.dialects.nearest import nearest
from prime_train.errors import UserError
from prime_train.rundir import RunDir

RUNS = "runs"  # the default of run.dir
_LISTED = 12  # names that fit into a message


def is_run(path: Path) -> bool:
    """Whether `path` is a directory in which a supervisor once opened a run."""
    run_dir = RunDir(path)
    return run_dir.events.is_dir() or run_dir.resolved.is_file()


def known(directory: Path) -> list[str]:
    """The names of the runs in `directory`/runs, in alphabetical order."""
    root = directory / RUNS
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if is_run(path))


def find(name: str, directory: Path) -> RunDir:
    """The run called `name` in `directory`/runs, or whose directory `name` is. UserError where there is none."""
    for path in (directory / RUNS / name, directory / name):
        if is_run(path):
            return RunDir(path.resolve())
    names = known(directory)
    if not names:
        why = f"there is no run in {directory / RUNS}"
        fix = "go to the directory the run was started from, or give the path of the run's directory"
        raise UserError(f"no run {name!r}", f"RUN = {name}", why, fix)
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
    meant = nearest(name, names)
    fix = f"did you mean {meant}?" if meant else "one of these names, or the path of a run's directory"
    raise UserError(f"no run {name!r}", f"RUN = {name}", f"the runs in {directory / RUNS} are: {listed}", fix)
