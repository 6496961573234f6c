"""The job on Slurm of a run, for `status`, `logs` and `stop`. Slurm is asked only if the run directory names a job."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import typer

from prime_train.cli.render import message
from prime_train.cloud.slurm import commands, record
from prime_train.cloud.slurm.commands import QueuedJob
from prime_train.cloud.slurm.record import SlurmJob
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.supervise.lock import find_holder
from prime_train.views.status import Status

_POLL_S = 15.0  # between two questions to Slurm, because its controller serves every user of the cluster


class JobState:
    """Asks Slurm about the jobs of runs. After a question without an answer it asks no more."""

    def __init__(self) -> None:
        self._error: UserError | None = None

    def of(self, run_dir: RunDir) -> QueuedJob | None:
        """The job of a run; None if it has none. Its state is "UNKNOWN" if Slurm does not answer."""
        job = record.read_job(run_dir)
        if job is None:
            return None
        if self._error is None:
            try:
                return commands.look_up(job)
            except UserError as error:
                typer.echo(message(error, sys.stderr), err=True)
                self._error = error
        return QueuedJob(job.job_id, "UNKNOWN", reason=self._error.what)


def joined(status: Status, job: QueuedJob | None) -> Status:
    """The status with its place in the queue.

    A lock that names another machine may be that of a node that died; without a running job it has no holder.
    """
    if job is None or job.state == "UNKNOWN":
        return status
    if job.runs:
        starts = not status.supervised and not status.state.closed
        return status._replace(scheduled="starting", place=job.text()) if starts else status
    held = find_holder(RunDir(status.path))
    status = status._replace(supervised=status.supervised and held is not None and held.here)
    return status._replace(scheduled="queued", place=job.text()) if job.waits and not status.supervised else status


def job_document(job: QueuedJob | None, run_dir: RunDir) -> dict[str, Any]:
    """The key "slurm" of `status --json`; no key for a run that never was on Slurm."""
    if job is None:
        return {}
    progress = record.read_progress(run_dir)
    starts = progress.restarts + 1 if progress is not None and progress.job_id == job.job_id else 0
    recorded = record.read_job(run_dir)
    output = None if recorded is None else str(record.output_file(run_dir, recorded))
    return {
        "slurm": {**{name: value or None for name, value in job._asdict().items()}, "starts": starts, "output": output}
    }


def job_lines(job: QueuedJob | None, run_dir: RunDir) -> list[tuple[str, str]]:
    """The lines of `status RUN` about its job."""
    if job is None:
        return []
    starts = job_document(job, run_dir)["slurm"]["starts"]
    text = f"job {job.job_id} has left the queue" if job.state == "GONE" else job.text()
    return [("slurm", f"{text}, started {starts} times" if starts > 1 else text)]


def output_before_attempts(run_dir: RunDir) -> Path | None:
    """The output of the run's job, if no attempt has a log yet."""
    job = record.read_job(run_dir)
    if job is None or any(run_dir.path.glob("attempts/*")):
        return None
    return record.output_file(run_dir, job)


class QueueWatch:
    """Whether a job will write more of a log. Slurm is asked four times a minute at most."""

    def __init__(self, run_dir: RunDir) -> None:
        self._job = record.read_job(run_dir)
        self._states = JobState()
        self._run_dir = run_dir
        self._asked_s = 0.0
        self._active = self._job is not None

    @property
    def active(self) -> bool:
        """Whether the job is in the queue."""
        now_s = time.monotonic()
        if self._active and now_s - self._asked_s > _POLL_S:
            found = self._states.of(self._run_dir)
            self._asked_s, self._active = now_s, found is not None and found.active
        return self._active


def stop_job(run_dir: RunDir, timeout_s: float) -> bool:
    """End the run's job: cancel one that waits, let one that runs save a checkpoint. False if it has none in the queue.

    Raises UserError if the job is not the run's or runs on after `timeout_s`, or if Slurm does not answer and no
    supervisor is here.
    """
    job = record.read_job(run_dir)
    if job is None:
        return False
    try:
        found = commands.look_up(job)
    except UserError:
        held = find_holder(run_dir)
        if held is not None and held.here:  # a run that was continued on this machine, which needs no Slurm
            return False
        raise
    if not found.active:
        return False
    commands.refuse_stranger(job, run_dir)
    record.request_stop(run_dir, job)  # first, so that the job is not requeued
    if found.state == "RUNNING":
        commands.ask_to_save(job)
        typer.echo(f"asked job {job.job_id} on {found.nodes} to checkpoint and end", err=True)
    elif found.waits:
        commands.cancel(job)
        typer.echo(f"{found.text()}: cancelled", err=True)
    ended = commands.wait_for_end(job, timeout_s)
    if ended.active:
        raise _runs_on(ended, job, run_dir, timeout_s)
    return True


def _runs_on(found: QueuedJob, job: SlurmJob, run_dir: RunDir, timeout_s: float) -> UserError:
    cluster = f"--clusters={job.cluster} " if job.cluster else ""
    return UserError(
        what=f"{found.text()} {timeout_s:g} s after the request to end",
        where=str(run_dir.path),
        why="it received the request and is still ending, or it hangs",
        fix=f"wait for longer: prime-train stop {run_dir.path.name}; or lose the checkpoint: "
        f"scancel {cluster}{job.job_id}",
        exit_code=ExitCode.OUT_OF_REACH,
    )
