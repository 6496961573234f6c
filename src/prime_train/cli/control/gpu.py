"""`prime-train gpu`: takes GPUs out of a run, tests them and gives them back, while the run goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from prime_train.cli.control.command import Timeout, Why, give_command
from prime_train.cli.terminal.options import NoColor, RunName

app = typer.Typer()
_NAMES = "Numbers or UUIDs, as nvidia-smi -L shows them; machine-1 is all of another machine."
Gpus = Annotated[list[str], typer.Argument(metavar="GPU...", help=_NAMES)]
_TEST_S = 360.0  # a drain saves, and the test imports torch


@app.command("drain")
def drain(run: RunName, gpus: Gpus, why: Why = "", timeout_s: Timeout = None, _no_color: NoColor = False) -> None:
    """Save, go on without these GPUs, and test them. Refused where too few others remain.

    In a run on several machines the numbers are those of machine 0. Another machine leaves with all of its GPUs; the
    run stays paused then, until that machine is returned and the run is resumed.

    Examples:

      prime-train gpu drain quickstart 3

      prime-train gpu drain quickstart 3 --why "ECC errors"

      prime-train gpu drain quickstart machine-1
    """
    typer.echo(give_command(run, "drain", why, timeout_s or _TEST_S, gpus=gpus).what)


@app.command("test")
def check(run: RunName, gpus: Gpus, why: Why = "", timeout_s: Timeout = None, _no_color: NoColor = False) -> None:
    """Compare a matrix product, copies and an all-reduce of a pair with known results.

    Only of GPUs that are drained, or of a run that is paused. Exit code 4: one failed. `cpu` is the stand-in of a
    machine without GPUs.

    Examples:

      prime-train gpu test quickstart 3

      prime-train gpu test quickstart cpu
    """
    typer.echo(give_command(run, "test", why, timeout_s or _TEST_S, gpus=gpus).what)


@app.command("return")
def return_(run: RunName, gpus: Gpus, why: Why = "", timeout_s: Timeout = None, _no_color: NoColor = False) -> None:
    """Use GPUs that were left out again, from the next attempt on.

    Examples:

      prime-train gpu return quickstart 3

      prime-train gpu return quickstart GPU-1f6a4c2e --why "replaced"
    """
    typer.echo(give_command(run, "return", why, timeout_s, gpus=gpus).what)
