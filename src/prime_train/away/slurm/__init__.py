"""Jobs on Slurm, which save before their time limit and requeue themselves. Its nodes share the run directory.

`stop` writes the job's number before it signals, so the job is not requeued. It signals no job whose output is not in
the run directory, because the number in a copied directory may belong to another job. The tests start a real Slurm on
one machine. docs/slurm.md is for users.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prime_train.away.job import Job
from prime_train.core.rundir import RunDir


def find(_run: str, _folder: Path, run_dir: RunDir | None) -> Job | None:
    """The job that the run directory names. Slurm is not asked for a run that never had one."""
    if run_dir is None:
        return None
    from prime_train.away.slurm.job import find_run

    return find_run(run_dir)


def list_runs(_folder: Path) -> Iterable[str]:
    return ()
