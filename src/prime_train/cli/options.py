"""The arguments and options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def complete_run(incomplete: str) -> list[str]:
    """The runs in this folder whose names start with `incomplete`, for shell completion."""
    from prime_train.views.runs import known

    return [name for name in known(Path.cwd()) if name.startswith(incomplete)]


def _forbid_color(no_color: bool) -> bool:
    if no_color:
        os.environ["NO_COLOR"] = "1"  # read by rich, by cli/render.py and by every child process
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
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
