"""`prime-train stop`: requests a checkpoint and the end of a run, and waits until the run has ended."""

import time
from pathlib import Path

import typer

from prime_train.away.job import find_job
from prime_train.cli.control.command import Timeout, find_limit_s
from prime_train.cli.jobs import PRINTER
from prime_train.cli.terminal.options import NoColor, RunName
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import Holder
from prime_train.core.rundir import RunDir
from prime_train.events import Follower
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.processes.requests import request_stop
from prime_train.views.run.runs import find
from prime_train.views.run.status import read_status
from prime_train.views.run.status_document import status_document

_POLL_S = 0.1
_REPORT_EVERY_S = 5.0


def stop(
    run: RunName,
    timeout_s: Timeout = None,
    _no_color: NoColor = False,
) -> None:
    """Save a checkpoint, end a run and wait for its end.

    The command that started the run resumes it. A job on Slurm that waits is cancelled.

    Examples:

      prime-train stop quickstart

      prime-train stop quickstart --timeout 30
    """
    job = find_job(run, Path.cwd())
    if job is not None and job.run_dir is None:
        typer.echo(job.cancel(timeout_s or 0.0, PRINTER))
        return
    run_dir = find(run, Path.cwd())
    limit_s = find_limit_s(run_dir, timeout_s)
    if job is None or job.cancel(limit_s, PRINTER) is None:
        before = status_document(read_status(run_dir, time.time()))
        holder = request_stop(run_dir, before["attempt"])
        request = "checkpoint and end" if before["step"] > 0 else "end; it has made no step yet, so nothing is saved"
        typer.echo(f"asked process {holder.identity.pid} to {request}", err=True)
        _wait(run_dir, holder, limit_s)
    found = status_document(read_status(run_dir, time.time()))
    newest = found["checkpoints"]["newest_complete"]
    saved = "no complete checkpoint" if newest is None else f"checkpoint of step {newest:,}"
    typer.echo(f"{found['run']} {found['state']} at step {found['step']:,}; {saved}")


def _wait(run_dir: RunDir, holder: Holder, timeout_s: float) -> None:
    """Print the events of the run until its supervisor has ended. Raises UserError after `timeout_s`."""
    follower = Follower(run_dir.events)
    follower.poll()
    began_s = printed_s = time.monotonic()
    while holder.identity.alive:
        lines = [line for record in follower.poll() if (line := describe(record.event))]
        for line in lines:
            typer.echo(f"  {line}", err=True)
        now_s = time.monotonic()
        if lines:
            printed_s = now_s
        elif now_s - printed_s > _REPORT_EVERY_S:
            typer.echo(f"  waiting for {now_s - began_s:.0f} s", err=True)
            printed_s = now_s
        if now_s - began_s > timeout_s:
            raise UserError(
                what=f"process {holder.identity.pid} has not ended after {timeout_s:g} s",
                where=str(run_dir.path),
                why="it received the request and is still ending, or it hangs",
                fix=f"wait for longer: prime-train stop {run_dir.path.name}; or lose the checkpoint: "
                f"kill -9 {holder.identity.pid}",
                exit_code=ExitCode.OUT_OF_REACH,
            )
        time.sleep(_POLL_S)
