"""Follows a managed job for `run --spot`, and is how `status`, `logs` and `stop` reach one. Rents nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from prime_train.cli.render import labelled
from prime_train.cloud.sky import commands
from prime_train.cloud.sky.commands import Sky
from prime_train.cloud.sky.follow import Progress, View, describe_job, read_progress, report
from prime_train.cloud.sky.names import job_name
from prime_train.cloud.sky.queue import ManagedJob, find_job
from prime_train.cloud.sky.record import JobRecord, find_record
from prime_train.core.errors import ExitCode, UserError
from prime_train.views.runs import RUNS, is_run

_POLL_S = 20.0  # SkyPilot's controller looks at a job every 15 s
_MOST_FAILURES = 5  # readings in a row; the job runs on without a reader

_EXIT_CODES = {"SUCCEEDED": ExitCode.OK, "CANCELLED": ExitCode.RESUMABLE}


def follow(sky: Sky, record: JobRecord, wait: Callable[[float], None], *, as_json: bool = False) -> ExitCode:
    """Print a line for each phase until the job is over, and then its status. Ctrl-C ends the reading, not the job."""
    view, failures = View(), 0
    poll_s = float(os.environ.get("PRIME_TRAIN_SKY_POLL_S", _POLL_S))
    try:
        while True:
            try:
                job = read_job(sky, record)
                log = commands.read_log(sky, job.id) if job.state == "RUNNING" else ""
            except UserError as error:
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise
                typer.echo(f"warning: {error.where}: {error.what}; the job goes on", err=True)
                wait(poll_s)
                continue
            failures = 0
            view, lines = report(view, job, read_progress(log), record.candidates, record.max_steps)
            for line in lines:
                typer.echo(f"{record.run}: {line}", err=True)
            if job.is_over:
                labelled_lines, document = describe_job(job, Progress(view.step, view.saved_step), record)
                text = json.dumps(document, indent=1) if as_json else labelled(record.run, labelled_lines, sys.stdout)
                typer.echo(text)
                return _EXIT_CODES.get(job.state, ExitCode.RUN_FAILED)
            wait(poll_s)
    except KeyboardInterrupt:
        typer.echo(f"the job goes on: prime-train status {record.run}, prime-train stop {record.run}", err=True)
        return ExitCode.OK


def read_job(sky: Sky, record: JobRecord) -> ManagedJob:
    """The job of a record in the queue. Raises UserError if it is not there."""
    jobs = commands.list_jobs(sky)
    known = next((job for job in jobs if job.id == record.job_id), None)
    found = known if known is not None and not known.is_over else find_job(jobs, record.run) or known
    if found is None:
        raise UserError(
            what=f"no managed job {record.run}",
            where="sky jobs queue",
            why="it was never submitted, or SkyPilot has another user or workspace than at its submission",
            fix=f"sky jobs launch -n {record.run} {record.task}",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    return found


def find_managed(run: str) -> JobRecord | None:
    """The record of a run that is a managed job; None for a local run, which has a directory of its own."""
    here = Path.cwd()
    if is_run(here / RUNS / run) or is_run(here / run):
        return None
    return find_record(here / RUNS, run) or find_record(here / RUNS, job_name(run))


def open_sky() -> Sky:
    """The installed `sky`. Raises UserError without one."""
    try:
        return commands.find_sky(os.environ)
    except commands.Unreachable as error:
        raise UserError(
            what=str(error),
            where="sky",
            why="the run is a managed job, and only SkyPilot knows its state",
            fix=commands.INSTALL,
            exit_code=ExitCode.OUT_OF_REACH,
        ) from None


def job_status(record: JobRecord) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """The state of a managed job, as labelled lines and as a versioned JSON document."""
    sky = open_sky()
    job = read_job(sky, record)
    progress = read_progress(commands.read_log(sky, job.id)) if job.state == "RUNNING" else read_progress("")
    return describe_job(job, progress, record)


def job_logs(record: JobRecord, *, follow_log: bool) -> int:
    """Show the output of a managed job. Returns the exit code of `sky`."""
    sky = open_sky()
    return commands.show_log(sky, read_job(sky, record).id, follow=follow_log)


def job_stop(record: JobRecord) -> str:
    """Cancel a managed job, and return the line that reports it. Its bucket stays."""
    sky = open_sky()
    job = read_job(sky, record)
    if job.is_over:
        return f"{record.run} is over: {job.state.lower()}"
    commands.cancel(sky, job.id)
    kept = f"; its checkpoints stay in the bucket {record.bucket}" if record.bucket else ""
    return f"managed job {job.id} is cancelled{kept}"
