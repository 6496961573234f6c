"""Records which runs are managed jobs: one small JSON file per run, beside the directories of local runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.away.sky.candidates import Candidate
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.rundir import write_atomic

_JOB = re.compile(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*")  # skypilot 0.14.1, task.py, _VALID_NAME_REGEX
_LONGEST_JOB = 48  # a cluster's name adds to it, and clouds allow 63
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_SHORTEST_BUCKET, _LONGEST_BUCKET = 3, 63
_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
_AZURE_BUCKET = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-", "goog")


def job_name(run_name: str) -> str:
    """The name of the job of a run: the same for each submission, because it is the id of the run in the bucket.

    Characters that SkyPilot refuses become hyphens.
    """
    words = re.sub(r"[^a-zA-Z0-9.]+", "-", run_name)
    words = re.sub(r"[.-]{2,}", "-", words).strip("-.")
    return words[:_LONGEST_JOB].rstrip("-.") or "run"


def bucket_name(job: str, salt: str) -> str:
    """The default bucket of a job. `salt` makes it hard to guess, because all users of a cloud share the names."""
    words = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-").replace("google", "x")  # Google keeps its name
    return f"prime-train-{words[: _LONGEST_BUCKET - 13 - len(salt)].strip('-')}-{salt}"


def job_fault(name: str) -> str:
    """Why SkyPilot refuses the name of a job; "" if it accepts it."""
    if len(name) > _LONGEST_JOB:
        return f"it has {len(name)} characters, and at most {_LONGEST_JOB} fit into the names of machines"
    return "" if _JOB.fullmatch(name) else "letters, digits, and single . _ - between them"


def bucket_fault(name: str, store: str) -> str:
    """Why a cloud refuses the name of a bucket; "" if it accepts it.

    Source: the naming rules of Amazon S3, Google Cloud Storage and Azure containers. SkyPilot checks them at launch.
    """
    if not _SHORTEST_BUCKET <= len(name) <= _LONGEST_BUCKET:
        return f"it has {len(name)} characters, and {_SHORTEST_BUCKET} to {_LONGEST_BUCKET} are allowed"
    if not _BUCKET.fullmatch(name):
        return "lower-case letters, digits, hyphens and dots are allowed, with a letter or digit at both ends"
    if ".." in name or _ADDRESS.fullmatch(name):
        return "two dots in a row and IP addresses are not allowed"
    if name.startswith(_RESERVED_STARTS) or name.endswith(_RESERVED_ENDS) or "google" in name:
        return "this beginning or end is reserved by the cloud"
    if store == "azure" and not _AZURE_BUCKET.fullmatch(name):
        return "Azure allows no dot and no two hyphens in a row"
    return ""


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
        why = "it names the managed job of the run"
        fix = f"sky jobs queue shows the job; the file can be deleted: rm {path}"
        raise UserError(f"it is no record of a job: {error}", str(path), why, fix) from None


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
