"""`prime-train status`: the state of one run, or of all runs in this folder. Reads only."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.options import AsJson, NoColor, complete_run
from prime_train.cli.render import labelled, message, table
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.views import runs
from prime_train.views.status import OVERVIEW, all_as_json, as_lines, as_rows, read_status
from prime_train.views.status import as_json as document


def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run: its name under ./runs, or the path of its directory. Default: all runs in ./runs.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """The state of one run, or of all runs in this folder.

    Step, loss, restarts with their last cause, processes, newest complete checkpoint.

    Examples:

      prime-train status

      prime-train status quickstart --json | jq .state
    """
    from prime_train.cloud.job_record import list_records  # lazy, as below

    here = Path.cwd()
    if run is not None:
        from prime_train.cli.follow_job import find_managed, job_status  # lazy: most runs are local

        record = find_managed(run)
        if record is not None:
            lines, managed = job_status(record)
            typer.echo(json.dumps(managed, indent=1) if as_json else labelled(record.run, lines, sys.stdout))
            return
        found = read_status(runs.find(run, here), time.time())
        if as_json:
            typer.echo(json.dumps(document(found), indent=1))
        else:
            typer.echo(labelled(found.name, as_lines(found), sys.stdout))
        return
    found_all = []
    for name in runs.run_names(here):
        try:
            found_all.append(read_status(RunDir(here / runs.RUNS / name), time.time()))
        except UserError as error:  # an unreadable run must not hide the others
            typer.echo(message(error, sys.stderr), err=True)
    if as_json:
        typer.echo(json.dumps(all_as_json(found_all), indent=1))
        return
    for name in list_records(here / runs.RUNS):
        typer.echo(f"{name} is a managed job: prime-train status {name}", err=True)
    if found_all:
        typer.echo(table(as_rows(found_all), OVERVIEW, right=frozenset({2, 3, 4, 5})))
    else:
        typer.echo(f"no run in {here / runs.RUNS}; start one with `prime-train run`", err=True)
