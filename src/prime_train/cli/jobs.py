"""The jobs of runs on other machines, for `run`, `status`, `logs` and `stop`: questions, and a job that is followed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import typer

from prime_train.away.job import Job, JobState, Printer
from prime_train.cli.terminal.render import labelled, message
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import find_holder
from prime_train.views.run.status import Status

_POLL_S = 20.0  # SkyPilot's controller looks at a job every 15 s
_MOST_FAILURES = 5  # readings in a row; the job runs on without a reader

PRINTER = Printer(
    write=lambda text: typer.echo(text, nl=False),
    note=lambda line: typer.echo(line, err=True),
    problem=lambda error: typer.echo(message(error, sys.stderr), err=True),
)


class JobQuestions:
    """Looks up the jobs of many runs. A scheduler that did not answer once is not asked again, and its error is shown.

    Each question to a scheduler that is down takes its whole time limit.
    """

    def __init__(self) -> None:
        self._silent: dict[type[Job], UserError] = {}

    def look_up(self, job: Job | None) -> JobState | None:
        """The state of a job; None for a run that has none."""
        if job is None:
            return None
        known = self._silent.get(type(job))
        state = job.look_up(known)
        if state.problem is not None and known is None:
            PRINTER.problem(state.problem)
            self._silent[type(job)] = state.problem
        return state


def joined(status: Status, job: JobState | None) -> Status:
    """The status with its place in the queue.

    A lock that names another machine may be that of a node that died; without a running job it has no holder.
    """
    if job is None or job.stage == "unknown":
        return status
    if job.stage == "runs":
        starts = not status.supervised and not status.state.closed
        return status._replace(scheduled="starting", place=job.text) if starts else status
    held = find_holder(RunDir(status.path))
    status = status._replace(supervised=status.supervised and held is not None and held.here)
    is_queued = job.stage == "waits" and not status.supervised
    return status._replace(scheduled="queued", place=job.text) if is_queued else status


def follow(job: Job, wait: Callable[[float], None], *, as_json: bool = False) -> ExitCode:
    """Print a line for each change until the job is over, and then its status. Ctrl-C ends the reading, not the job."""
    failures = 0
    poll_s = float(os.environ.get("PRIME_TRAIN_SKY_POLL_S", _POLL_S))
    try:
        while True:
            state = job.look_up()
            failures = 0 if state.problem is None else failures + 1
            if state.problem is not None:
                if failures >= _MOST_FAILURES:
                    raise state.problem
                PRINTER.note(f"warning: {state.problem.where}: {state.problem.what}; the job goes on")
            for change in state.changes:
                PRINTER.note(f"{job.run}: {change}")
            if state.stage == "over":
                typer.echo(status_text(job, state, as_json=as_json))
                return ExitCode.RUN_FAILED if state.exit_code is None else state.exit_code
            wait(poll_s)
    except KeyboardInterrupt:
        PRINTER.note(f"the job goes on: prime-train status {job.run}, prime-train stop {job.run}")
        return ExitCode.OK


def status_text(job: Job, state: JobState, *, as_json: bool) -> str:
    """The status of a run that only its scheduler knows."""
    return json.dumps(state.document, indent=1) if as_json else labelled(job.run, list(state.lines), sys.stdout)
