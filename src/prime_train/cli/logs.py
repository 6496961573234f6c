"""`prime-train logs`: the output of a run's processes, and what the run reports. Reads only."""

import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from prime_train.away.job import QueueWatch, find_job
from prime_train.cli.diagnose_run import history_of
from prime_train.cli.jobs import PRINTER
from prime_train.cli.terminal.options import NoColor, RunName
from prime_train.cli.terminal.render import fit_terminal, painter
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import find_holder
from prime_train.views.diagnosis import attempt_lines
from prime_train.views.run import logs as view
from prime_train.views.run.run_log import AttemptLog
from prime_train.views.run.runs import find

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
    job = find_job(run, Path.cwd())
    if job is not None and job.run_dir is None:
        raise typer.Exit(job.logs(lines, PRINTER, follow=follow))
    run_dir = find(run, Path.cwd())
    queue = QueueWatch(job, PRINTER)
    if job is not None and attempt is None and not view.attempts(run_dir):
        code = job.logs(lines, PRINTER, follow=follow)
        if not view.attempts(run_dir):
            raise typer.Exit(code)
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
    """The log of an attempt. Prints why the one before failed, and its path: the trainer's file, or the folder."""
    path = view.attempt_log(run_dir, attempt)
    for ended in history_of(run_dir).ended:
        if ended.attempt == attempt - 1 and ended.outcome == "failed" and not raw:
            lines = attempt_lines(ended, painter(sys.stderr))
            typer.echo(redact("\n".join(lines), own_secrets()), err=True)  # why there is this attempt
    typer.echo(f"==> attempt {attempt}: {path if raw else path.parent}", err=True)
    return AttemptLog(run_dir, attempt, own_secrets(), roles=(path.stem,) if raw else ())


def _print(log: AttemptLog, *, is_all: bool, is_raw: bool) -> None:
    for text in log.more(is_all=is_all):
        typer.echo(text if is_raw else fit_terminal(text, sys.stdout), nl=False)
