"""Gives a command to the supervisor of a run, and prints the events until it is done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import own_user
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, RequestAnswered, RunClosed
from prime_train.programs import recorded
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.processes.ask import ask, create_request_id
from prime_train.supervise.processes.lock import find_holder
from prime_train.supervise.processes.requests import COMMAND_REQUESTED
from prime_train.views.run.runs import find
from prime_train.views.run.status import fold_events

_POLL_S = 0.1
_AFTER_GRACE_S = 60.0  # to kill a trainer that ignores the request, and for a report or the next launch

Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, which the run's events keep.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="Longest wait. Default: the run's grace and a minute."),
]


def find_limit_s(run_dir: RunDir, timeout_s: float | None) -> float:
    """The longest wait for what ends an attempt: as given, or by the grace of the run."""
    _, spec = recorded(run_dir, strict=False)
    return spec.prime_train.stop_grace_s + _AFTER_GRACE_S if timeout_s is None else timeout_s


def give_command(run: str, command: str, why: str, timeout_s: float | None, **values: Any) -> RequestAnswered:
    """The last answer to a command. Raises UserError where it was refused, failed, or is not done in time."""
    run_dir = find(run, Path.cwd())
    limit_s = find_limit_s(run_dir, timeout_s)
    follower = Follower.near_end(run_dir.events, 0)
    follower.poll()
    request_id = create_request_id()
    body = {"command": command, "by": own_user(), "why": why, **values}
    answer = ask(run_dir, fold_events(run_dir).attempt_number, COMMAND_REQUESTED, body, request_id)
    if answer.outcome == "accepted":
        typer.echo(answer.what, err=True)
        answer = _await_end(run_dir, follower, request_id, limit_s)
    if answer.outcome != "done":
        code = ExitCode.USAGE if answer.outcome == "refused" else ExitCode.OUT_OF_REACH
        raise UserError(answer.what, answer.where or str(run_dir.path), answer.why, answer.fix, code)
    return answer


def _await_end(run_dir: RunDir, follower: Follower, request_id: str, limit_s: float) -> RequestAnswered:
    """Print the events of the run until a command that was accepted is over. Raises UserError after `limit_s`."""
    until_s = time.monotonic() + limit_s
    holder = find_holder(run_dir)
    while time.monotonic() < until_s:
        is_over = holder is None or not holder.identity.alive  # looked at first: it may have written its last events
        for event in (record.event for record in follower.poll()):
            match event:
                case RequestAnswered(request_id=found) if found == request_id and event.outcome != "accepted":
                    return event
                case RunClosed(state=state, reason=reason):
                    raise _overtaken(run_dir, f"the run has {state}: {reason}")
            if text := describe(event):
                typer.echo(f"  {text}", err=True)
        if is_over:
            raise _overtaken(run_dir, "its supervisor has ended")
        time.sleep(_POLL_S)
    what = f"the command is accepted, and not done after {limit_s:g} s"
    why = "the supervisor carries it out; a step, a save or a test takes longer"
    fix = f"look at it with `prime-train status {run_dir.path.name}`, or give a longer --timeout"
    raise UserError(what, str(run_dir.path), why, fix, ExitCode.OUT_OF_REACH)


def _overtaken(run_dir: RunDir, what: str) -> UserError:
    fix = f"look at it with `prime-train status {run_dir.path.name}`"
    return UserError(what, str(run_dir.path), "it ended before the command was done", fix, ExitCode.OUT_OF_REACH)
