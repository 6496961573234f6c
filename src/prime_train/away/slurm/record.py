"""Reads and writes what a run directory keeps of its job on Slurm. Starts nothing.

slurm/job.json names the latest job, slurm/progress.json has the starts without progress, and slurm/stop_requested has
the number of a job that must not be requeued. The files are read as text from outside: bounded and checked.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.away.slurm.requeue import StartProgress
from prime_train.core import outside
from prime_train.core.outside import parse_json
from prime_train.core.rundir import RunDir, make_folder, write_atomic

_LONGEST_BYTES = 64 * 1024
_JOB_ID = re.compile(r"[0-9]{1,12}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class SlurmJob(NamedTuple):
    """A job by its number. `cluster`: "" for the only one. `submitted_s`: Unix time."""

    job_id: str
    cluster: str
    submitted_s: float


def is_job_id(text: str) -> bool:
    return bool(_JOB_ID.fullmatch(text))


def parse_submitted(line: str, now_s: float) -> SlurmJob | None:
    """The job in what `sbatch --parsable` prints: NUMBER or NUMBER;CLUSTER."""
    job_id, _, cluster = line.strip().partition(";")
    return SlurmJob(job_id, cluster, now_s) if _is_job(job_id, cluster) else None


def _is_job(job_id: object, cluster: object) -> bool:
    is_text = isinstance(job_id, str) and isinstance(cluster, str)
    return is_text and is_job_id(str(job_id)) and (not cluster or bool(_CLUSTER.fullmatch(str(cluster))))


def write_job(run_dir: RunDir, job: SlurmJob) -> None:
    make_folder(run_dir.slurm)
    write_atomic(run_dir.slurm / "job.json", json.dumps({"version": 1, **job._asdict()}, indent=1))


def read_job(run_dir: RunDir) -> SlurmJob | None:
    """The latest job of a run; None if it never was on Slurm, or the record cannot be read."""
    found = _read(run_dir.slurm / "job.json")
    job_id, cluster, submitted_s = found.get("job_id"), found.get("cluster"), found.get("submitted_s")
    if not _is_job(job_id, cluster) or isinstance(submitted_s, bool) or not isinstance(submitted_s, int | float):
        return None
    return SlurmJob(str(job_id), str(cluster), float(submitted_s))


def write_progress(run_dir: RunDir, progress: StartProgress) -> None:
    make_folder(run_dir.slurm)
    write_atomic(run_dir.slurm / "progress.json", json.dumps({"version": 1, **progress._asdict()}, indent=1))


def read_progress(run_dir: RunDir) -> StartProgress | None:
    """The progress at the latest start; None if there was none, or the record cannot be read."""
    found = _read(run_dir.slurm / "progress.json")
    numbers = [found.get(name) for name in ("restarts", "step", "fruitless")]
    if not _is_job(found.get("job_id"), ""):
        return None
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        return None
    restarts, step, fruitless = (int(str(number)) for number in numbers)
    return StartProgress(str(found["job_id"]), restarts, step, fruitless)


def request_stop(run_dir: RunDir, job: SlurmJob) -> None:
    """Record that this job must not be requeued. Another job of the same run is not affected."""
    write_atomic(_stop_file(run_dir), job.job_id + "\n")


def withdraw_stop(run_dir: RunDir) -> None:
    _stop_file(run_dir).unlink(missing_ok=True)


def stop_requested(run_dir: RunDir, job_id: str) -> bool:
    return _text(_stop_file(run_dir)).strip() == job_id


def output_file(run_dir: RunDir, job: SlurmJob) -> Path:
    """The output of a job, in which all its starts append."""
    return run_dir.slurm / f"job-{job.job_id}.log"


def _stop_file(run_dir: RunDir) -> Path:
    return run_dir.slurm / "stop_requested"


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = parse_json(_text(path))
        if isinstance(found, dict) and found.get("version") == 1:
            return found
    return {}


def _text(path: Path) -> str:
    """The text of a small regular file; "" if there is none."""
    try:
        with outside.open_regular(path, path.parent) as file:
            return file.read(_LONGEST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
