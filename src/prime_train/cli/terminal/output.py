"""Prints the result of a command: its document, or a table of it; and its progress. Decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from prime_train.cli.terminal.render import json_text, table, terminal_columns
from prime_train.core.errors import ExitCode, UserError, explain_disk_error
from prime_train.core.rundir import write_atomic

_NUMBERS = frozenset({"STEP", "SIZE", "STORED", "AGE", "AS SAVED", "ABOUT", "ON DISK", "SMALLER BY"})


def print_json(document: dict[str, Any]) -> None:
    typer.echo(json_text(document))


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str], nothing: str) -> None:
    """Print the rows; without rows, print `nothing` to standard error. Numbers, sizes and ages are right-aligned."""
    if rows:
        right = {index for index, title in enumerate(header) if title in _NUMBERS}
        typer.echo(table(rows, header, right, terminal_columns(sys.stdout)))
    else:
        typer.echo(nothing, err=True)


def write_file(path: Path, content: str | bytes, *, makes_folders: bool = False) -> None:
    """Write a file whole. Raises UserError with exit code 4 where the disk refuses it, or its folder is not there."""
    try:
        if makes_folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content, is_private=False)
    except OSError as error:
        found = explain_disk_error(error.errno or 0, path.parent)
        raise UserError(found.what, str(path), found.why, found.fix, ExitCode.OUT_OF_REACH) from None


def refuse_both(command: str, *, as_json: bool, as_csv: bool) -> None:
    """Raise UserError for two forms of one result."""
    if as_json and as_csv:
        raise UserError("--json and --csv are given", command, "one result is printed", "leave one of them out")


@contextmanager
def show_count(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the number of further items that are done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, advance=done)


@contextmanager
def show_bytes(size_bytes: int, label: str) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the number of processed bytes. `size_bytes`: the total; 0 where it is not known."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(label, total=size_bytes or None)
        yield lambda done_bytes: bar.update(task, advance=done_bytes)
