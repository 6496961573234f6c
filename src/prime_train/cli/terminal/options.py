"""The arguments and options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def complete_run(incomplete: str) -> list[str]:
    """The runs in this folder whose names start with `incomplete`, for shell completion."""
    from prime_train.views.run.runs import run_names

    return [name for name in run_names(Path.cwd()) if name.startswith(incomplete)]


def complete_config(incomplete: str) -> list[str]:
    """The TOML files of a folder and the presets that start with `incomplete`, for shell completion."""
    from prime_train.config.presets import list_presets

    folder, _, name = incomplete.rpartition("/")
    root = Path(folder or ("/" if incomplete.startswith("/") else "."))
    prefix = incomplete[: len(incomplete) - len(name)]
    files = [f"{prefix}{path.name}" for path in sorted(root.glob("*.toml")) if path.name.startswith(name)]
    return [*files, *(preset for preset in list_presets() if not prefix and preset.startswith(name))]


def _forbid_color(no_color: bool) -> bool:
    if no_color:
        os.environ["NO_COLOR"] = "1"  # read by rich, by cli/terminal/render.py and by every child process
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
COMMAND_WORD = "--command-word"  # of `run`: each word that follows --

NoColor = Annotated[
    bool,
    typer.Option("--no-color", help="Plain text. NO_COLOR=1 does the same.", callback=_forbid_color, is_eager=True),
]
Step = Annotated[int | None, typer.Option("--step", metavar="N", min=1, help="Only the checkpoint of this step.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit code 1 for warnings, too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A config file, a preset's name, or - for standard input.",
        autocompletion=complete_config,
    ),
]
_CONFIGS = "A config file, a preset's name, or - for standard input; several files with + between them are merged."
Configs = Annotated[
    list[str], typer.Argument(metavar="CONFIG", help=_CONFIGS, autocompletion=complete_config, show_default=False)
]
OptionalConfigs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG]", help=_CONFIGS, autocompletion=complete_config, show_default=False),
]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="The interpreter that the run will use.", show_default=False),
]
Generation = Annotated[
    str | None,
    typer.Option(
        "--prime-rl",
        metavar="GENERATION",
        help="The generation of prime-rl files that name none, such as 2026-08.",
        show_default=False,
    ),
]
ModelConfig = Annotated[
    str | None,
    typer.Option(
        "--model-config", metavar="FILE", help="The config.json of the model, or its folder.", show_default=False
    ),
]
Prices = Annotated[
    str | None,
    typer.Option("--prices", metavar="FILE", help="A file of prices to use instead of the table.", show_default=False),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use only the local cache; make no network requests.")]
