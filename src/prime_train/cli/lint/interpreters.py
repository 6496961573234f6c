"""Reports which programs the checks of a config start, because a config may come from somewhere else. Starts none."""

from __future__ import annotations

import typer

from prime_train.facts.requirements import named_interpreters
from prime_train.spec import RunSpec


def announce_interpreters(run: RunSpec, instead: str | None = None) -> None:
    """Print each interpreter that the config names, before it is started to read its packages.

    `instead`: what --python names. A config that names no interpreter prints nothing.
    """
    for python in named_interpreters(run, instead):
        typer.echo(f"note: the config names the interpreter {python}; it is started to read its packages", err=True)
