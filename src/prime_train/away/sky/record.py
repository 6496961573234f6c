"""Records which runs are managed jobs: one small JSON file per run, beside the directories of local runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.away.sky.candidates import Candidate
from prime_train.away.sky.names import job_fault
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.rundir import write_atomic

_ENDING = ".job.json"
_VERSION = 1
_LARGEST_BYTES = 2**20


class JobRecord(NamedTuple):
    """A run that was submitted. `job_id` is None until the queue has shown it; `task` is the submitted file."""

    run: str
    job_id: int | None
    task: str
    bucket: str
    max_steps: int
    candidates: tuple[Candidate, ...]


def record_path(folder: Path, run: str) -> Path:
    return folder / f"{run}{_ENDING}"


def task_path(folder: Path, run: str) -> Path:
    return folder / f"{run}.job.yaml"


def write_record(folder: Path, record: JobRecord) -> None:
    """Write the record of a run into the folder of the runs."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"version": _VERSION, **record._asdict(), "candidates": [item._asdict() for item in record.candidates]}
    write_atomic(record_path(folder, record.run), json.dumps(document, indent=1))


def find_record(folder: Path, run: str) -> JobRecord | None:
    """The record of a run; None if it is no managed job. Raises UserError for a file that cannot be read."""
    if job_fault(run):  # a path, or the name of a local run that no job can have
        return None
    path = record_path(folder, run)
    try:
        return _parse(outside.read_json(path, _LARGEST_BYTES), run)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            what=f"it is no record of a job: {error}",
            where=str(path),
            why="it names the managed job of the run",
            fix=f"sky jobs queue shows the job; the file can be deleted: rm {path}",
        ) from None


def list_records(folder: Path) -> Iterator[str]:
    """Names of the runs that are managed jobs, in alphabetical order."""
    if folder.is_dir():
        yield from sorted(path.name.removesuffix(_ENDING) for path in folder.iterdir() if path.name.endswith(_ENDING))


def _parse(document: Any, run: str) -> JobRecord:
    if document["version"] != _VERSION or document["run"] != run:
        raise ValueError("another version or another run")
    job_id = document["job_id"]
    return JobRecord(
        run=run,
        job_id=None if job_id is None else int(job_id),
        task=str(document["task"]),
        bucket=str(document["bucket"]),
        max_steps=int(document["max_steps"]),
        candidates=tuple(Candidate(**item) for item in document["candidates"]),
    )
