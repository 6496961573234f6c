"""Managed jobs of SkyPilot: rented spot machines, which are replaced when the cloud takes one away.

The run directory is on the rented machine or in a bucket. Here is only a record of the job, beside the run directories.
What a lost machine wrote last may be missing in a bucket, so an attempt number may be used twice, and the loop deletes
the remains. Where several machines train, only machine 0 opens the bucket. docs/spot.md is for users.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prime_train.away.job import Job
from prime_train.core.rundir import RunDir


def find(run: str, folder: Path, run_dir: RunDir | None) -> Job | None:
    """The job with a record. A run with a directory here is a local one, whatever record has its name."""
    if run_dir is not None:
        return None
    from prime_train.away.sky.job import find_run  # lazy: most runs are local

    return find_run(run, folder)


def list_runs(folder: Path) -> Iterable[str]:
    if next(folder.glob("*.job.json"), None) is None:  # to list a folder is faster than the import
        return ()
    from prime_train.away.sky.record import list_records

    return list_records(folder)
