"""`prime-train logs`: the output of a run's processes, and what the run reports. Reads only."""

import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.options import NoColor, RunName
from prime_train.cli.render import fit_terminal
from prime_train.cli.slurm_job import QueueWatch, output_before_attempts
from prime_train.core.own_secrets import own_secrets
from prime_train.core.rundir import RunDir
from prime_train.supervise.lock import find_holder
from prime_train.views import logs as view
from prime_train.views.logs import Printable, Tail
from prime_train.views.run_log import AttemptLog
from prime_train.views.runs import find

_POLL_S = 0.25


def logs(
    run: RunName,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="The attempt. Default: the latest.", min=1)
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", help="Last lines to show; 0 shows the whole log.", min=0)
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log into the next attempts, until the run ends.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Only the output of the trainer (or server), without names and events.")
    ] = False,
    _no_color: NoColor = False,
) -> None:
    """Show what a run does, and the output of its processes.

    Steps, checkpoints, evaluations and failures, and each line that its trainer or server prints.

    Shows the last lines of the latest attempt, or of --attempt. A line begins with its source: a process, or the run.

    Examples:

      prime-train logs quickstart --lines 200

      prime-train logs quickstart --follow

      prime-train logs quickstart --raw | grep -i warning
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `logs RUN | head` ends quietly
    from prime_train.cli.follow_job import find_managed, job_logs  # lazy: most runs are local

    record = find_managed(run)
    if record is not None:
        raise typer.Exit(job_logs(record, follow_log=follow))
    run_dir = find(run, Path.cwd())
    queue = QueueWatch(run_dir)
    if attempt is None and (output := output_before_attempts(run_dir)) is not None:
        _show_output(run_dir, output, lines, queue if follow else None)
        if not view.attempts(run_dir):
            return
    shown = view.attempt_or_latest(run_dir, attempt)
    log = _open(run_dir, shown, raw=raw)
    log.skip_to_last(lines)
    _print(log, is_all=not follow, is_raw=raw)
    while follow:
        over = find_holder(run_dir) is None and not queue.active  # before the log: its last lines are shown
        followed = shown < view.attempt_or_latest(run_dir, None)
        _print(log, is_all=over or followed, is_raw=raw)
        if attempt is None and followed:
            shown += 1
            log = _open(run_dir, shown, raw=raw)
        elif over or followed:
            return
        time.sleep(_POLL_S)


def _open(run_dir: RunDir, attempt: int, *, raw: bool) -> AttemptLog:
    """The log of an attempt. Prints its path: the trainer's file, or the folder of all."""
    path = view.attempt_log(run_dir, attempt)
    typer.echo(f"==> attempt {attempt}: {path if raw else path.parent}", err=True)
    return AttemptLog(run_dir, attempt, own_secrets(), roles=(path.stem,) if raw else ())


def _print(log: AttemptLog, *, is_all: bool, is_raw: bool) -> None:
    for text in log.more(is_all=is_all):
        typer.echo(text if is_raw else fit_terminal(text, sys.stdout), nl=False)


def _show_output(run_dir: RunDir, output: Path, lines: int, queue: QueueWatch | None) -> None:
    """Show the output of a job on Slurm. With `queue`: until the first attempt, or until the job has left the queue."""
    tail = view.Tail(output)
    typer.echo(f"==> {tail.path}", err=True)
    tail.skip_to_last(lines)
    printable = view.Printable(own_secrets())
    _show(tail, printable, is_all=queue is None)
    while queue is not None and not view.attempts(run_dir):
        over = not queue.active
        _show(tail, printable, is_all=over)
        if over:
            return
        time.sleep(_POLL_S)


def _show(tail: Tail, printable: Printable, *, is_all: bool) -> None:
    """Print what is new in the log. `is_all`: nothing follows, so an incomplete last line is printed, too."""
    for chunk in tail.more():
        typer.echo(printable.feed(chunk), nl=False)
    if is_all:
        typer.echo(printable.flush(), nl=False)
