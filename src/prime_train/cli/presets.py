"""`prime-train presets`: the configs that ship with the package, and the user's own: listed, shown, copied."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import json_text, table, terminal_columns
from prime_train.config.presets import Preset, find_preset, list_presets, read_preset
from prime_train.core.errors import UserError
from prime_train.toml.did_you_mean import nearest
from prime_train.views.text import sanitize

app = typer.Typer()

_GPUS = "# GPUs: "
_ORIGINS = {"user": "you", "shipped": "prime-train"}


def complete_preset(incomplete: str) -> list[str]:
    """The presets whose names start with `incomplete`, for shell completion."""
    return [name for name in list_presets() if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="PRESET", help="Its name.", autocompletion=complete_preset, show_default=False)
]


@app.command("list")
def list_all(as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every preset: its GPUs and what it trains.

    Your own are the files NAME.toml in ~/.config/prime-train/presets (below $XDG_CONFIG_HOME if that is set). One with
    the name of a shipped preset is taken in its place; shipped:NAME is the shipped one.

    Examples:

      prime-train presets list

      prime-train presets list --json | jq -r '.presets[].name'
    """
    documents = [_list_one(preset) for preset in list_presets().values()]
    if as_json:
        typer.echo(json_text({"version": 1, "presets": documents}))
    else:
        rows = [(one["name"], _origin(one), one["gpus"], one["fault"] or one["summary"]) for one in documents]
        typer.echo(table(rows, ("name", "from", "gpus", "what it trains"), columns=terminal_columns(sys.stdout)))


@app.command("show")
def show(preset: Name, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """The text of a preset.

    Examples:

      prime-train presets show quickstart

      prime-train presets show serve | less
    """
    found = _find(preset)
    text = read_preset(found)
    if as_json:
        typer.echo(json_text({"version": 1, "preset": _document(found, text) | {"text": text}}))
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
    text = read_preset(_find(preset))
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


def _document(preset: Preset, text: str, fault: str | None = None) -> dict[str, Any]:
    """The name of a preset, its GPUs, the first sentence of its comment, whose it is, and why it cannot be used."""
    comment = text.partition("\n\n")[0].splitlines()
    gpus = next((line.removeprefix(_GPUS) for line in comment if line.startswith(_GPUS)), "-")
    words = (line for line in comment if line.startswith("#") and not line.startswith(_GPUS))
    summary = " ".join(line.removeprefix("#").strip() for line in words).partition(". ")[0].rstrip(".")
    known = {"name": preset.name, "gpus": sanitize(gpus), "summary": sanitize(summary)}
    return known | {"origin": "user" if preset.is_users else "shipped", "shadows": preset.shadows, "fault": fault}


def _list_one(preset: Preset) -> dict[str, Any]:
    """The row of a preset, also of one that cannot be used."""
    import tomli  # here, because --help and completion need none

    try:
        text = read_preset(preset)
        if preset.is_users:
            tomli.loads(text)
    except UserError as error:
        return _document(preset, "", f"cannot be used: {error.what}")
    except (tomli.TOMLDecodeError, RecursionError) as error:
        return _document(preset, "", f"cannot be used: it is no TOML: {sanitize(str(error))}")
    return _document(preset, text)


def _origin(document: dict[str, Any]) -> str:
    return "you, in place of the shipped one" if document["shadows"] else _ORIGINS[document["origin"]]


def _find(name: str) -> Preset:
    found = find_preset(name)
    if found is not None:
        return found
    known = list_presets()
    meant = nearest(name, known)
    raise UserError(
        what=f"no preset is called {name}",
        where=f"prime-train presets {name}",
        why=f"did you mean {meant}?" if meant else f"the presets: {', '.join(known)}",
        fix=f"prime-train presets show {meant}" if meant else "prime-train presets list",
    )
