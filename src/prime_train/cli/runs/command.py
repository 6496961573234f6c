"""`prime-train runs`: the table over all runs of a folder. Reads only."""

import gc
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from prime_train.away.job import list_jobs
from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.output import refuse_both
from prime_train.cli.terminal.render import table, terminal_columns
from prime_train.views.compare import conditions, listing
from prime_train.views.compare.rows import folder_of_runs, read_rows, unreadable_error
from prime_train.views.text import encode_json, sanitize

AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of text.")]
_MANY_OBJECTS = 500_000  # the rows stay until the end, so to look for garbage among them is in vain


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="A folder of runs, or one with runs/ in it.", show_default=False)
    ] = Path(),
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="KEY", help="By a column or a key; -KEY: downwards.", show_default="by start"),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="CONDITION", help="Only runs that fulfil it; several: all hold."),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask Slurm and SkyPilot how runs on other machines are.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Show every changed key with its values.")] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    _no_color: NoColor = False,
) -> None:
    """All runs of a folder: what was changed, how far they came, what they reached.

    CHANGED has the keys that differ from the run before with the same kind. BEST and LAST are rewards where a run has
    any, else training losses; <= or >= marks a long run whose end alone was read, so its best is at least as good.
    COST is an interval over the prices for its GPUs. A run on Slurm or SkyPilot has the state of its last event here;
    --ask asks for the state of its job, of at most 50.

    A condition is a column or a key in the config, a sign = != < <= > >=, and a value.

    Examples:

      prime-train runs

      prime-train runs --where 'state=failed' --where 'optim.lr>1e-4' --sort=-started

      prime-train runs /shared/runs --csv > runs.csv
    """
    refuse_both("prime-train runs", as_json=as_json, as_csv=as_csv)
    gc.set_threshold(_MANY_OBJECTS)
    now_s, place = time.time(), folder_of_runs(folder)
    away = list(list_jobs(place))
    found = read_rows(place, now_s, may_be_empty=bool(away))
    if away or any(row.is_open for row in found):
        from prime_train.cli.runs.jobs import add_jobs  # here, because it takes longer to import than rows to read

        found = add_jobs(found, away, place, now_s, asks=ask)
    shown = conditions.keep(found, where or ())
    shown = conditions.sort(shown, sort) if sort is not None else shown
    if as_json:
        document = {"version": 1, "runs": [listing.document(row) for row in shown]}
        typer.echo(encode_json(document))  # the output masks secrets, once
    elif as_csv:
        typer.echo(listing.as_csv(shown))
    elif shown:
        cells = [listing.cells(row, wide=wide) for row in shown]
        columns = None if wide else terminal_columns(sys.stdout)
        typer.echo(table(cells, listing.HEADER, listing.RIGHT, columns, listing.LEAST_NEEDED))
    else:
        typer.echo(sanitize(conditions.describe_filter(where or (), len(found))), err=True)
    error = unreadable_error(found)
    if error is not None:
        raise error
