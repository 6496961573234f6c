"""`prime-train models`: the registry of tested models and their known issues. Reads shipped files only."""

import sys
from typing import Annotated

import typer

from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import json_text, labelled, table, terminal_columns
from prime_train.core.errors import UserError
from prime_train.registry.models import tested_model, tested_models
from prime_train.toml.did_you_mean import nearest
from prime_train.views import models as view

app = typer.Typer()


def _complete(incomplete: str) -> list[str]:
    return [name for name in tested_models() if name.startswith(incomplete)]


@app.command("list")
def list_models(as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every tested model: its prime-rl, its vLLM, its tool parser, the number of known issues.

    Examples:

      prime-train models list

      prime-train models list --json | jq -r '.models[] | select(.issues != []) | .name'
    """
    document = view.models_json(tested_models().values())
    if as_json:
        typer.echo(json_text(document))
    else:
        columns = terminal_columns(sys.stdout)
        typer.echo(table(view.as_rows(document), view.HEADER, frozenset({5}), columns, least_needed=(1,)))


@app.command("show")
def show(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Its name on the hub, as owner/name.", autocompletion=_complete, show_default=False
        ),
    ],
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """One tested model: who ran it, with which versions, its known issues and their workarounds.

    Examples:

      prime-train models show Qwen/Qwen3-4B-Instruct-2507

      prime-train models show openai/gpt-oss-20b --json
    """
    found = tested_model(model)
    if found is None:
        meant = nearest(model, tested_models())
        raise UserError(
            what=f"{model} is not among the {len(tested_models())} tested models",
            where=f"prime-train models show {model}",
            why=f"did you mean {meant}?" if meant else "no run with it has been recorded",
            fix=f"prime-train models show {meant}" if meant else f"check it: prime-train verify-model {model}",
        )
    document = view.models_json([found])
    if as_json:
        typer.echo(json_text(document))
    else:
        typer.echo(labelled(found.name, view.as_lines(document["models"][0]), sys.stdout))
