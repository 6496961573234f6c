"""The arguments and options that several commands share. Reads no run; completion lists the names of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def complete_run(incomplete: str) -> list[str]:
    """Names of runs here that begin so, for the shell."""
    from prime_train.views.runs import run_names

    return [name for name in run_names(Path.cwd()) if name.startswith(incomplete)]


def _forbid_color(no_color: bool) -> bool:
    if no_color:
        os.environ["NO_COLOR"] = "1"  # rich, our own painting and every child process read this one
    return no_color


RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its name under ./runs, or the path of its directory.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
NoColor = Annotated[
    bool,
    typer.Option("--no-color", help="Plain text. NO_COLOR=1 does the same.", callback=_forbid_color, is_eager=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of text.")]
