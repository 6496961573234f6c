"""`prime-train ckpt pin`: protects a checkpoint from the retention of its run."""

from pathlib import Path
from typing import Annotated

import typer

from prime_train.checkpoints import pins
from prime_train.cli.terminal.options import NoColor, RunName
from prime_train.views.run.checkpoints import find_checkpoint
from prime_train.views.run.runs import find


def pin(
    run: RunName,
    step: Annotated[int, typer.Argument(metavar="STEP", min=1, help="The step of the checkpoint.", show_default=False)],
    unpin: Annotated[bool, typer.Option("--unpin", help="Take the pin away.")] = False,
    _no_color: NoColor = False,
) -> None:
    """Keep a checkpoint from every deletion of prime-train, or let it go again.

    The pin is a file PINNED in its folder. A trainer of another project that deletes by itself does not look at it.

    Examples:

      prime-train ckpt pin quickstart 500

      prime-train ckpt pin quickstart 500 --unpin
    """
    change = pins.unpin if unpin else pins.pin
    run_dir = find(run, Path.cwd())
    typer.echo(change(find_checkpoint(run_dir, step), run_dir.path.name))
