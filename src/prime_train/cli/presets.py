"""`prime-train presets`: the configs that ship with the package: listed, shown, copied."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import json_text, table, terminal_columns
from prime_train.core.errors import UserError
from prime_train.registry.gpus import presets
from prime_train.toml.did_you_mean import nearest

app = typer.Typer()

_GPUS = "# GPUs: "


def complete_preset(incomplete: str) -> list[str]:
    """The presets whose names start with `incomplete`, for shell completion."""
    return [name for name in presets() if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="PRESET", help="Its name.", autocompletion=complete_preset, show_default=False)
]


@app.command("list")
def list_presets(as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every preset: its GPUs and what it trains.

    Examples:

      prime-train presets list

      prime-train presets list --json | jq -r '.presets[].name'
    """
    documents = [_document(name, path.read_text("utf-8")) for name, path in presets().items()]
    if as_json:
        typer.echo(json_text({"version": 1, "presets": documents}))
    else:
        rows = [tuple(document.values()) for document in documents]
        typer.echo(table(rows, ("name", "gpus", "what it trains"), columns=terminal_columns(sys.stdout)))


@app.command("show")
def show(preset: Name, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """The text of a preset.

    Examples:

      prime-train presets show quickstart

      prime-train presets show serve | less
    """
    text = _find(preset).read_text("utf-8")
    if as_json:
        typer.echo(json_text({"version": 1, "preset": _document(preset, text) | {"text": text}}))
    else:
        typer.echo(text, nl=False)


@app.command("copy")
def copy(
    preset: Name,
    target: Annotated[Path, typer.Argument(metavar="[FILE]", help="The new file.")] = Path("run.toml"),
    _no_color: NoColor = False,
) -> None:
    """Copy a preset, to change it. An existing file is never replaced.

    Examples:

      prime-train presets copy quickstart

      prime-train presets copy rl-single-gpu rl.toml
    """
    text = _find(preset).read_text("utf-8")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        exists = isinstance(error, FileExistsError)
        raise UserError(
            what="the file exists" if exists else f"it cannot be written: {error.strerror}",
            where=str(target),
            why="a copy replaces nothing" if exists else "the copy is a new file",
            fix=f"name another file: prime-train presets copy {preset} FILE",
        ) from None
    typer.echo(f"{target} is a copy of the preset {preset}; next: prime-train validate {target}", err=True)


def _document(name: str, text: str) -> dict[str, str]:
    """The name of a preset, its GPUs, and the first sentence of its comment."""
    comment = text.partition("\n\n")[0].splitlines()
    gpus = next((line.removeprefix(_GPUS) for line in comment if line.startswith(_GPUS)), "-")
    words = " ".join(line.removeprefix("#").strip() for line in comment if not line.startswith(_GPUS))
    return {"name": name, "gpus": gpus, "summary": words.partition(". ")[0].rstrip(".")}


def _find(name: str) -> Path:
    known = presets()
    if name in known:
        return known[name]
    meant = nearest(name, known)
    raise UserError(
        what=f"no preset is called {name}",
        where=f"prime-train presets {name}",
        why=f"did you mean {meant}?" if meant else f"the presets: {', '.join(known)}",
        fix=f"prime-train presets show {meant}" if meant else "prime-train presets list",
    )
