"""`prime-train pause`: saves, ends the trainer and so frees its GPUs; the supervisor waits for `resume`."""

import typer

from prime_train.cli.control.command import Timeout, Why, give_command
from prime_train.cli.terminal.options import NoColor, RunName


def pause(run: RunName, why: Why = "", timeout_s: Timeout = None, _no_color: NoColor = False) -> None:
    """Save a checkpoint and free the GPUs; `resume` goes on from there.

    The supervisor stays and holds the run. A pause is no failed attempt. `stop` ends a paused run.

    Examples:

      prime-train pause quickstart

      prime-train pause quickstart --why "the evaluation needs the GPUs"
    """
    typer.echo(give_command(run, "pause", why, timeout_s).what)
    typer.echo(f"to continue: prime-train resume {run}", err=True)
