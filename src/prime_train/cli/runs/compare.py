"""`prime-train compare`: curves, the keys that differ, and the noise between seeds."""

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.runs.command import AsCsv
from prime_train.cli.terminal.options import AsJson, NoColor, complete_run
from prime_train.cli.terminal.output import refuse_both, write_file
from prime_train.cli.terminal.render import color_wanted, fit_terminal, json_text, painter, table, terminal_columns
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.views.compare import comparison, picture
from prime_train.views.compare.panels import Axes
from prime_train.views.run.runs import find

_COLUMNS = 80  # for a file or a pipe
_WIDEST = 160
_NUMBERS = {2, 3}


class Axis(StrEnum):
    """What --x accepts."""

    STEP = "step"
    TOKENS = "tokens"
    HOURS = "hours"


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Runs: names under ./runs, or paths of their directories.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ],
    x: Annotated[Axis, typer.Option("--x", help="What the curves are drawn over.")] = Axis.STEP,
    smooth: Annotated[
        int, typer.Option("--smooth", metavar="N", min=0, help="Draw means in which a value counts half after N steps.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.png", help="Draw a picture.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    _no_color: NoColor = False,
) -> None:
    """Curves of several runs, and the keys that differ.

    Loss, reward, tokens/s and held-out loss, each step as it was made last. Hours add up the steps: pauses and
    steps that were repeated are left out.

    Runs that differ in run.seed alone are repeats: their mean is drawn with their spread. Whether two groups differ by
    more than the noise is known with two seeds for each: by a t-test, wrong in one case out of twenty. The value for a
    run is the mean over the last tenth up to the last common step.

    Examples:

      prime-train compare wide deep --smooth 20

      prime-train compare a b /shared/runs/c --x hours --output curves.png
    """
    refuse_both("prime-train compare", as_json=as_json, as_csv=as_csv)
    if output is not None and output.suffix.lower() != ".png":
        what, why = f"{output.name} does not end with .png", "the picture is a PNG, and replaces a file of its name"
        raise UserError(what, "--output", why, f"--output {output.stem or 'curves'}.png")
    compared = comparison.compare(_find_all(runs), Axes(x.value, smooth), time.time())
    if output is not None and compared.panels:
        write_file(output, picture.draw(compared.panels, comparison.title(compared)))
        typer.echo(f"the picture is {output}", err=True)
    if as_json:
        if compared.panels:
            typer.echo(json_text(comparison.document(compared)))
    elif as_csv:
        typer.echo(comparison.as_csv(compared))
    else:
        _show(compared)
    if not compared.panels:
        error = comparison.nothing_to_draw_error(compared)
        error.document = comparison.document(compared)
        raise error


def _find_all(names: list[str]) -> list[RunDir]:
    found = [find(name, Path.cwd()) for name in names]
    again = next((name for place, name in enumerate(names) if found[place] in found[:place]), None)
    if again is not None:
        raise UserError("the run is given twice", f"RUN = {again}", "it would be its own repeat", "name it once")
    if len(found) > comparison.MOST_RUNS:
        what, fix = f"{len(found)} runs are more than {comparison.MOST_RUNS}", "prime-train runs shows all in a table"
        raise UserError(what, "RUN...", "each has a letter in the picture of a terminal", fix)
    return found


def _show(compared: comparison.ComparedRuns) -> None:
    columns = terminal_columns(sys.stdout)
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    paint = painter(sys.stdout) if color_wanted(sys.stdout) and encoding.startswith("utf") else None
    if compared.panels:
        plots = comparison.plots(compared, min(columns or _COLUMNS, _WIDEST), paint)
        typer.echo(fit_terminal(plots, sys.stdout) + "\n")
    legend = "\n".join(f"{sign}  {text}" for sign, text in comparison.legend(compared, paint))
    typer.echo(fit_terminal(legend, sys.stdout))
    for rows, header in (comparison.key_rows(compared), comparison.result_rows(compared)):
        if rows:
            typer.echo("\n" + table(rows, header, _NUMBERS if header[0] == "RUNS" else (), columns))
