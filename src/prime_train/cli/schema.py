"""`prime-train schema`: exports the schema of run.toml or of prime-rl, imports that of an installed prime-rl."""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.lint.files import refuse_generation
from prime_train.cli.terminal.options import NoColor
from prime_train.cli.terminal.render import json_text
from prime_train.config import run_toml
from prime_train.config.json_schema import json_schema
from prime_train.config.prime_rl import json_schema as prime_rl_json
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.table import to_json
from prime_train.core.errors import UserError
from prime_train.core.installation import cache_path
from prime_train.core.rundir import write_atomic
from prime_train.facts import installed_prime_rl

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write. Default: standard output.", show_default=False)
]

app = typer.Typer()


@app.command("export", short_help="Write a JSON Schema for editors.")
def export(
    output: Output = None,
    prime_rl: Annotated[
        str | None,
        typer.Option(
            "--prime-rl",
            metavar="GENERATION",
            help="Of prime-rl's files of this generation, such as 2026-08. Default: of a run.toml.",
            show_default=False,
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --prime-rl: which of its files. Default: rl.", show_default=False),
    ] = None,
    _no_color: NoColor = False,
) -> None:
    """Write the JSON Schema of run.toml, or of a file of prime-rl, for editors.

    Editors with taplo use it if the first line of a config is `#:schema ./run.schema.json`.

    Examples:

      prime-train schema export > run.schema.json

      prime-train schema export -o .vscode/run.schema.json

      prime-train schema export --prime-rl 2026-08 --root sft -o sft.schema.json
    """
    if prime_rl is not None:
        made = _of_prime_rl(prime_rl, root or "rl")
    elif root is not None:
        raise UserError(
            what="--root needs --prime-rl",
            where=f"--root {root}",
            why="a run.toml is one file, and only prime-rl has several",
            fix=f"add --prime-rl with a generation: prime-train schema export --prime-rl 2026-08 --root {root}",
        )
    else:
        kinds = (run_toml.serving_schema(), run_toml.command_schema(), run_toml.audio_schema())
        made = json_schema(run_toml.schema(), *kinds)
    _write(json_text(made) + "\n", output)


def _of_prime_rl(name: str, root: str) -> dict[str, Any]:
    refuse_generation(name)
    generation = load(name)
    if root not in generation.roots:
        raise UserError(
            what=f"prime-rl {name} has no file {root}",
            where=f"--root {root}",
            why=f"its files are {', '.join(generation.roots)}",
            fix="--root rl",
        )
    return prime_rl_json.json_schema(generation, root)


@app.command("import", short_help="Read the table of an installed prime-rl.")
def import_(
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="The interpreter that has prime-rl.", show_default=False)
    ],
    output: Output = None,
    generation: Annotated[
        str | None,
        typer.Option("--generation", metavar="NAME", help="Its name, else this month.", show_default=False),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the table in the folder where lint finds it.")] = False,
    _no_color: NoColor = False,
) -> None:
    """Read every legal key of an installed prime-rl into a table, by which lint checks prime-rl files.

    The interpreter of --python reads the keys; this process does not import prime-rl. registry/prime_rl/ has the
    shipped tables. With --keep, lint, validate and run use the table from then on.

    Examples:

      prime-train schema import --python ~/prime-rl/.venv/bin/python

      prime-train schema import --python ~/prime-rl/.venv/bin/python --generation 2026-11 -o 2026-11.json

      prime-train schema import --python ~/prime-rl/.venv/bin/python --keep
    """
    today = date.today()
    name = generation or f"{today:%Y-%m}"
    if not re.fullmatch(r"\d{4}-\d{2}[\w-]*", name):
        raise UserError(
            what=f"{name!r} is not a name for a generation",
            where="--generation",
            why="generations are identified and ordered by year and month",
            fix=f"--generation {today:%Y-%m}",
        )
    table = installed_prime_rl.table(python, name, today)
    text = to_json(table)
    sys.stderr.write(f"features: those of {table['inherits']}, the generation with the most keys in common\n")
    if keep:
        _keep(text, name)
    if output is not None or not keep:
        _write(text, output)


def _keep(text: str, name: str) -> None:
    path = Path(cache_path("prime_rl", f"{name}.json"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, is_private=False)
    except OSError as error:
        raise UserError(
            what="the table cannot be written",
            where=str(path),
            why=error.strerror or str(error),
            fix="free space or allow writing there, or set PRIME_TRAIN_CACHE to another directory",
        ) from None
    sys.stderr.write(f"kept as {path}: prime-train lint --prime-rl {name}\n")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            what="the schema cannot be written",
            where=str(output),
            why=error.strerror or str(error),
            fix="name a file in an existing, writable folder",
        ) from None
