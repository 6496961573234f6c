"""`prime-train status`: the state of one run, or of all runs in this folder. Reads only."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from prime_train.away.job import find_job, list_jobs
from prime_train.cli.jobs import JobQuestions, joined, status_text
from prime_train.cli.terminal.options import AsJson, NoColor, complete_run
from prime_train.cli.terminal.render import labelled, message, table, terminal_columns
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.views.run import runs
from prime_train.views.run.status import read_status
from prime_train.views.run.status_document import OVERVIEW, OVERVIEW_LEAST_NEEDED, as_lines, as_rows, status_document

_CLEAR = "\x1b[H\x1b[2J"  # cursor to the top left, and an empty screen
_EVERY_S = 2.0


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
    wandb: Annotated[
        str | None,
        typer.Option("--wandb", metavar="ENTITY/PROJECT/ID", help="A run anywhere, by W&B.", show_default=False),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", help="With --wandb: the run's config, for its number of steps.", show_default=False),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="With --config: its GPUs, for the expected time of a step.", show_default=False),
    ] = None,
    run_dir: Annotated[
        str | None,
        typer.Option("--run-dir", help="With --wandb: its directory, or its mounted bucket.", show_default=False),
    ] = None,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.0, help="With --wandb: wait before a second poll.")
    ] = 60.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until the run ends.")] = False,
    _no_color: NoColor = False,
) -> None:
    """The state of one run, or of all runs in this folder.

    Step, loss, restarts with their last cause, processes, newest complete checkpoint.

    With --wandb: alive, slow, stalled, crashed, finished or unknown, from heartbeat, steps and system metrics at W&B. A
    bad verdict needs two polls that agree, 45 minutes, and a second witness (system metrics, --run-dir).

    Exit codes with --wandb: 0 alive, or finished with all steps; 1 slow or stalled; 4 unknown; 5 crashed or ended
    early, and another start needs a person; 75 crashed and resumable.

    Examples:

      prime-train status

      prime-train status quickstart --watch

      prime-train status quickstart --json | jq .state

      prime-train status --wandb me/nano/k3x9 --config run.toml --json | jq .verdict
    """
    if wandb is not None:
        from prime_train.cli.status_wandb import Options, status_wandb  # lazy: the status of a local run is fast

        if run is not None:
            what, why = f"both a run and --wandb are given: {run}", "one command judges one run"
            raise UserError(what, "RUN", why, "leave one of them out")
        status_wandb(Options(wandb, config, gpus, run_dir, interval_s, as_json))
        return
    _refuse_alone(config, gpus, run_dir)
    while True:
        text, is_live = _show_all(as_json) if run is None else _show_run(run, as_json)
        is_screen = watch and sys.stdout.isatty()
        if text or is_screen:
            typer.echo(f"{_CLEAR}{text}" if is_screen else text)
        if not (watch and is_live):
            return
        time.sleep(_EVERY_S)


def _show_run(run: str, as_json: bool) -> tuple[str, bool]:
    """The text, and whether the run is live or waits for its machine. Raises UserError."""
    job = find_job(run, Path.cwd())
    if job is not None and job.run_dir is None:
        state = job.look_up()
        if state.problem is not None:
            raise state.problem
        return status_text(job, state, as_json=as_json), state.is_active
    found_dir = runs.find(run, Path.cwd())
    place = JobQuestions().look_up(job)
    found = joined(read_status(found_dir, time.time()), place)
    is_live = found.supervised or bool(found.scheduled)
    document = status_document(found)
    if as_json:
        return json.dumps(document | dict(place.document if place else {}), indent=1), is_live
    lines = [*as_lines(document), *(place.lines if place else ())]
    return labelled(document["run"], lines, sys.stdout), is_live


def _show_all(as_json: bool) -> tuple[str, bool]:
    """The text, and True: another run may start at any time."""
    here, questions = Path.cwd(), JobQuestions()
    documents, unread = [], []
    for name in runs.run_names(here):
        try:
            found_dir = RunDir(here / runs.RUNS / name)
            place = questions.look_up(find_job(name, here))
            documents.append(status_document(joined(read_status(found_dir, time.time()), place)))
        except UserError as error:  # an unreadable run must not hide the others
            typer.echo(message(error, sys.stderr), err=True)
            unread.append((name, "unreadable", *[""] * (len(OVERVIEW) - 2)))
        except OSError as error:  # another user's run, or a file system that does not answer
            unread.append((name, f"unreadable: {error.strerror or error}", *[""] * (len(OVERVIEW) - 2)))
    if as_json:
        return json.dumps({"version": 1, "runs": documents}, indent=1), True
    for name in list_jobs(here / runs.RUNS):
        typer.echo(f"{name} is a managed job: prime-train status {name}", err=True)
    if not (documents or unread):
        typer.echo(f"no run in {here / runs.RUNS}; start one with `prime-train run`", err=True)
        return "", True
    rows = sorted([*as_rows(documents), *unread])
    columns = terminal_columns(sys.stdout)
    return table(rows, OVERVIEW, frozenset({2, 3, 4, 5}), columns, OVERVIEW_LEAST_NEEDED), True


def _refuse_alone(config: str | None, gpus: str | None, run_dir: str | None) -> None:
    named = (("--config", config), ("--gpus", gpus), ("--run-dir", run_dir))
    given = next((name for name, value in named if value is not None), None)
    if given is not None:
        what, why = f"{given} is given without --wandb", "the status of a local run comes from its directory"
        raise UserError(what, given, why, "add --wandb ENTITY/PROJECT/ID, or leave it out")
