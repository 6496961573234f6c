"""Prints the result of a command: its document, or a table of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from prime_train.cli.terminal.render import json_text, table, terminal_columns

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
