"""`prime-train report`: rewrites the report.md and the plots of a run."""

from pathlib import Path

import typer

from prime_train.cli.options import NoColor, RunName
from prime_train.views.report import write
from prime_train.views.runs import find


def report(run: RunName, _no_color: NoColor = False) -> None:
    """Rewrite report.md and the plots of a run.

    Works for a live run and for an ended one. Prints the path of the report.

    Examples:

      prime-train report quickstart

      less "$(prime-train report quickstart)"
    """
    run_dir = find(run, Path.cwd())
    write(run_dir)
    typer.echo(str(run_dir.report))
