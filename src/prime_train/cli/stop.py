"""`prime-train stop`: asks a run for a checkpoint and its end, and waits until it is down."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.options import NoColor, RunName

if TYPE_CHECKING:
    from prime_train.process_id import Holder
    from prime_train.rundir import RunDir

_POLL_S = 0.1
_TOLD_EVERY_S = 5.0
_AFTER_GRACE_S = 60.0  # to end a trainer that ignores the request, and to write the report


def stop(
    run: RunName,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Longest wait; without it the run's own grace and a minute."),
    ] = None,
    _no_color: NoColor = False,
) -> None:
    """Let a run checkpoint and end, and wait for it.

    The command that started it goes on from there later.

    Examples:

      prime-train stop quickstart

      prime-train stop quickstart --timeout 30
    """
    from prime_train.supervise.control import request_stop
    from prime_train.views import status
    from prime_train.views.runs import find

    run_dir = find(run, Path.cwd())
    asked = request_stop(run_dir)
    typer.echo(f"asked process {asked.identity.pid} to checkpoint and end", err=True)
    _wait(run_dir, asked, _grace_s(run_dir) + _AFTER_GRACE_S if timeout_s is None else timeout_s)
    found = status.look(run_dir, time.time())
    newest = (
        "no complete checkpoint" if found.newest_complete is None else f"checkpoint of step {found.newest_complete:,}"
    )
    typer.echo(f"{found.name} {found.word} at step {found.state.step:,}; {newest}")


def _wait(run_dir: "RunDir", asked: "Holder", timeout_s: float) -> None:
    """Return when the supervisor is gone; say meanwhile what happens. UserError at the end of the patience."""
    from prime_train.errors import ExitCode, UserError
    from prime_train.events import Follower
    from prime_train.supervise.wording import describe

    follower = Follower(run_dir.events)
    follower.poll()
    began_s = told_s = time.monotonic()
    while asked.identity.alive:
        words = [described for record in follower.poll() if (described := describe(record.event))]
        for told in words:
            typer.echo(f"  {told}", err=True)
        now_s = time.monotonic()
        if words:
            told_s = now_s
        elif now_s - told_s > _TOLD_EVERY_S:
            typer.echo(f"  waiting for {now_s - began_s:.0f} s", err=True)
            told_s = now_s
        if now_s - began_s > timeout_s:
            raise UserError(
                what=f"process {asked.identity.pid} has not ended after {timeout_s:g} s",
                where=str(run_dir.path),
                why="it was asked and is still on its way down, or it hangs",
                fix=f"wait for longer: prime-train stop {run_dir.path.name}; or give the checkpoint up: "
                f"kill -9 {asked.identity.pid}",
                exit_code=ExitCode.OUT_OF_REACH,
            )
        time.sleep(_POLL_S)


def _grace_s(run_dir: "RunDir") -> float:
    """The time the run gives its trainer to checkpoint; the default where its config cannot be read."""
    import json

    from prime_train.spec.supervision import PrimeTrain

    try:
        return float(json.loads(run_dir.resolved.read_text(encoding="utf-8"))["prime_train"]["stop_grace_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return PrimeTrain().stop_grace_s
