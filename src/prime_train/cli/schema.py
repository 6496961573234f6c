"""`prime-train schema`: config schemas for other programs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.options import NoColor
from prime_train.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Config schemas for other programs.")


@app.callback()
def _schema() -> None:
    pass


@app.command("export", short_help="Write the JSON Schema of run.toml.")
def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else standard output.", show_default=False)
    ] = None,
    _no_color: NoColor = False,
) -> None:
    """Write the JSON Schema of run.toml, for editors.

    A first line `#:schema ./run.schema.json` in a run.toml tells editors with taplo to use it.

    Examples:

      prime-train schema export > run.schema.json

      prime-train schema export -o .vscode/run.schema.json
    """
    import json

    from prime_train.dialects import native
    from prime_train.views.json_schema import json_schema

    text = json.dumps(json_schema(native.schema()), indent=1, ensure_ascii=False) + "\n"
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
            fix="name a file in a folder that is there and writable",
        ) from None
