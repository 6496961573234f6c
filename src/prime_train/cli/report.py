"""`prime-train report`: writes a run's report.md and plots again. Changes nothing else."""

from pathlib import Path

import typer

from prime_train.cli.options import NoColor, RunName


def report(run: RunName, _no_color: NoColor = False) -> None:
    """Write report.md and plots of a run again.

    While it runs or after, from what it recorded. The path of the report goes to stdout.

    Examples:

      prime-train report quickstart

      less "$(prime-train report quickstart)"
    """
    from prime_train.views.report import write
    from prime_train.views.runs import find

    run_dir = find(run, Path.cwd())
    write(run_dir)
    typer.echo(str(run_dir.report))
