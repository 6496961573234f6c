"""`prime-train ckpt`: which checkpoints of a run are complete, and whether their bytes are. Deletes nothing."""

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from prime_train.cli.options import AsJson, NoColor, RunName
from prime_train.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

app = typer.Typer(
    help="Checkpoints of a run: list, verify.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_(run: RunName, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every checkpoint of a run, newest first: size, age, what is wrong with it, which one a resume takes.

    Examples:

      prime-train ckpt list quickstart

      prime-train ckpt list quickstart --json | jq .resume_step
    """
    from prime_train.cli.render import table
    from prime_train.views import checkpoints as view
    from prime_train.views.runs import find
    from prime_train.views.status import fold_events

    run_dir = find(run, Path.cwd())
    rows = view.gather(run_dir, fold_events(run_dir).unreadable, time.time())
    if as_json:
        typer.echo(json.dumps(view.as_json(run_dir.path.name, rows), indent=1))
    elif rows:
        typer.echo(table(view.as_rows(rows), ("STEP", "SIZE", "AGE", ""), right=frozenset({0, 1, 2})))
    else:
        typer.echo(f"no checkpoint in {run_dir.checkpoints}", err=True)


@app.command("verify")
def verify(run: RunName, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Read every byte of every checkpoint and compare it with the SHA-256 it was written with.

    Exit code 1 when one that was completed does not hold. A save that did not finish is shown and is no
    failure: no resume would take it.

    Examples:

      prime-train ckpt verify quickstart

      prime-train ckpt verify quickstart --json | jq '.checkpoints[] | select(.state == "broken")'
    """
    from prime_train.cli.render import table
    from prime_train.views import checkpoints as view
    from prime_train.views.runs import find

    run_dir = find(run, Path.cwd())
    with _progress(view.total_bytes(run_dir)) as on_read:
        results = list(view.verify(run_dir, on_read))
    if as_json:
        typer.echo(json.dumps(view.verified_as_json(run_dir.path.name, results), indent=1))
    elif not results:
        typer.echo(f"no checkpoint in {run_dir.checkpoints}", err=True)
    else:
        rows = [(str(found.step), found.state, found.problem) for found in results]
        typer.echo(table(rows, ("STEP", "STATE", ""), right=frozenset({0})))
    if any(verified.state == "broken" for verified in results):
        raise typer.Exit(ExitCode.FINDINGS)


@contextmanager
def _progress(size_bytes: int) -> "Iterator[Callable[[int], None]]":
    """A bar on a terminal, nothing elsewhere. The value is told how many bytes were read."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with typer.progressbar(length=size_bytes, label="reading", file=sys.stderr) as bar:
        yield bar.update
