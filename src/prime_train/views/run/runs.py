"""Finds runs by name or path. Reads directories only, never the files of a run."""

from __future__ import annotations

import os
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.toml.did_you_mean import nearest

RUNS = "runs"  # the default of run.dir
_LISTED = 12  # more names do not fit into a message


def is_run(path: Path) -> bool:
    """Whether a supervisor has opened a run in the directory `path`, or a job on Slurm will."""
    run_dir = RunDir(path)
    try:
        return run_dir.events.is_dir() or run_dir.resolved.is_file() or (run_dir.slurm / "job.json").is_file()
    except PermissionError:  # a folder of another user; the command that reads it reports the reason
        return True


def run_names(directory: Path) -> list[str]:
    """The names of the runs in `directory`/runs, in alphabetical order."""
    root = directory / RUNS
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if _may_be_run(path))


def _may_be_run(path: Path) -> bool:
    """A folder that may not be read has a row with that message; the others are shown."""
    try:
        return is_run(path)
    except OSError:
        return True


def find(name: str, directory: Path) -> RunDir:
    """The run `directory`/runs/`name`, or the run whose directory is `name`. Raises UserError if there is none."""
    places = (directory / RUNS / name, directory / name)
    for path in reversed(places) if os.sep in name else places:  # runs/NAME means no run of a folder runs/runs
        if is_run(path):
            return RunDir(path.resolve())
    names = run_names(directory)
    why = f"there is no run in {directory / RUNS}"
    fix = "cd to the directory where the run was started, or give the path of the run's directory"
    if names:
        listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
        why = f"the runs in {directory / RUNS} are: {listed}"
        meant = nearest(name, names)
        fix = f"did you mean {meant}?" if meant else "use one of these names, or the path of a run's directory"
    raise UserError(f"no run {name!r}", f"RUN = {name}", why, fix)
