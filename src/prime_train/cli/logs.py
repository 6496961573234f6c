"""`prime-train logs`: the output of a run's processes, and what the run reports. Reads only."""

import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from prime_train.away.job import Job, QueueWatch, find_job
from prime_train.cli.jobs import PRINTER
from prime_train.cli.terminal.options import AsJson, NoColor, RunName
from prime_train.cli.terminal.output import print_json
from prime_train.cli.terminal.render import fit_terminal, painter
from prime_train.core.errors import UserError
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded
from prime_train.supervise.processes.lock import find_holder
from prime_train.views.diagnosis import attempt_lines
from prime_train.views.run import logs as view
from prime_train.views.run.attempt_history import history_of
from prime_train.views.run.run_log import AttemptLog, log_document
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
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Show what a run does, and the output of its processes.

    Steps, checkpoints, evaluations and failures, and each line that its trainer or server prints.

    Shows the last lines of the latest attempt, or of --attempt. A line begins with its source: a process, or the run.

    Examples:

      prime-train logs quickstart --lines 200

      prime-train logs quickstart --follow

      prime-train logs quickstart --raw | grep -i warning

      prime-train logs quickstart --json | jq .failed_before
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `logs RUN | head` ends quietly
    if as_json and follow:
        what = "--json prints one document, and --follow never ends it"
        fix = f"prime-train logs {run} --follow for lines, or logs {run} --json for the log so far"
        raise UserError(what, "--json --follow", "an incomplete document cannot be read", fix)
    job = find_job(run, Path.cwd())
    if as_json:
        _print_document(run, job, attempt, lines, raw=raw)
        return
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
    before = None if raw else _failed_before(run_dir, attempt)
    if before is not None:
        typer.echo(redact("\n".join(attempt_lines(before, painter(sys.stderr))), own_secrets()), err=True)
    typer.echo(f"==> attempt {attempt}: {path if raw else path.parent}", err=True)
    return AttemptLog(run_dir, attempt, own_secrets(), roles=(path.stem,) if raw else ())


def _failed_before(run_dir: RunDir, attempt: int) -> AttemptEnded | None:
    """The end of the attempt before, if it failed: why there is this attempt."""
    ended = (end for end in history_of(run_dir).ended if end.attempt == attempt - 1 and end.outcome == "failed")
    return next(ended, None)


def _print_document(run: str, job: Job | None, attempt: int | None, lines: int, *, raw: bool) -> None:
    """Print the last `lines` of each source as one document. Exits like the job, if only its output is there."""
    run_dir = job.run_dir if job is not None else find(run, Path.cwd())
    if job is not None and (run_dir is None or (attempt is None and not view.attempts(run_dir))):
        pieces: list[str] = []
        code = job.logs(lines, PRINTER._replace(write=pieces.append), follow=False)
        print_json(log_document(job.run, {"job": "".join(pieces)}))
        raise typer.Exit(code)
    assert run_dir is not None, "a job without a run directory has printed its output"
    shown = view.attempt_or_latest(run_dir, attempt)
    roles = (view.attempt_log(run_dir, shown).stem,) if raw else ()
    log = AttemptLog(run_dir, shown, own_secrets(), roles=roles)
    log.skip_to_last(lines)
    print_json(log_document(run_dir.path.name, log.read_all(), shown, _failed_before(run_dir, shown)))


def _print(log: AttemptLog, *, is_all: bool, is_raw: bool) -> None:
    for text in log.more(is_all=is_all):
        typer.echo(text if is_raw else fit_terminal(text, sys.stdout), nl=False)
