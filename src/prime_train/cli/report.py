"""`prime-train report`: rewrites the report.md and the plots of a run."""

import time
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.terminal.options import AsJson, NoColor, RunName
from prime_train.cli.terminal.render import json_text
from prime_train.core.errors import ExitCode, UserError
from prime_train.supervise.processes.lock import check_folders
from prime_train.views.run.history import gather
from prime_train.views.run.report import write_into
from prime_train.views.run.runs import find
from prime_train.views.run.status import read_status
from prime_train.views.run.status_document import status_document


def report(
    run: RunName,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FOLDER", help="Write it there, for a run that only others may write."),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Rewrite report.md and the plots of a run.

    Works for a live run and for an ended one. Prints the path of the report; --json also prints the plots and the
    status of the run.

    Examples:

      prime-train report quickstart

      less "$(prime-train report quickstart)"

      prime-train report /shared/runs/nano --into ~/nano
    """
    run_dir = find(run, Path.cwd())
    folder = run_dir.path if into is None else into.expanduser().absolute()
    if into is None:
        check_folders(run_dir)
    history = gather(run_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path, drawn = write_into(folder, history)
    except OSError as error:
        raise UserError(
            what=f"the report cannot be written: {error.strerror or error}",
            where=str(folder),
            why="report.md and plots/ are written there",
            fix=f"prime-train report {run} --into FOLDER, with a folder that you may write",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from None
    if as_json:
        plots = [str(folder / name) for name in drawn]
        document = {"version": 1, "run": history.name, "report": str(path), "plots": plots}
        typer.echo(json_text(document | {"status": status_document(read_status(run_dir, time.time()))}))
    else:
        typer.echo(str(path))
