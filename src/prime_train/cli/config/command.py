"""`prime-train config`: the group of its commands, and `show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.config import versions
from prime_train.cli.config.diff import diff
from prime_train.cli.config.source import ConfigSource, config_argument, find_source
from prime_train.cli.terminal.options import AsJson, Generation, NoColor
from prime_train.cli.terminal.output import print_json, print_table
from prime_train.config.resolved import resolve
from prime_train.core.redaction import own_secrets
from prime_train.toml.document import Document
from prime_train.views.config.differences import show as show_value
from prime_train.views.config.masked import mask, mask_text

app = typer.Typer()
app.command("diff")(diff)
app.command("save")(versions.save)
app.command("list")(versions.list_)
app.command("history")(versions.history)
app.command("restore")(versions.restore)


@app.command("show")
def show(
    config: Annotated[str, config_argument("CONFIG")],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Every value with its default, and the line that sets it.")
    ] = False,
    prime_rl: Generation = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """A config as it is written, or every value that it has. Secrets are masked.

    Examples:

      prime-train config show rl.toml --resolved

      prime-train config show first-run@2

      prime-train config show HEAD~3:./rl.toml --json
    """
    source, hidden = find_source(config), own_secrets()
    document = {"version": 1, "config": source.title, "kind": source.kind}
    if not resolved:
        texts = [mask_text(part, hidden) for part in _list_documents(source, prime_rl)]
        if as_json:
            print_json(document | {"texts": texts})
        else:
            typer.echo("\n".join(texts), nl=False)
        return
    found = [(one.key, mask(one.key, one.value, hidden), one.source) for one in resolve(source.read(prime_rl))]
    if as_json:
        print_json(document | {"values": [dict(zip(("key", "value", "source"), one, strict=True)) for one in found]})
    else:
        rows = [(key, show_value(value), place) for key, value, place in found]
        print_table(rows, ("KEY", "VALUE", "FROM"), "no value is set")


def _list_documents(source: ConfigSource, prime_rl: str | None) -> list[Document]:
    """The texts of a config. One that is not TOML is read as what it is, so that each of its values has a place."""
    parts = [Document.parse(text, path) for text, path in source.parts]
    is_toml = all(Path(part.path).suffix in (".toml", "") and part.fault is None for part in parts)
    return parts if is_toml else [source.read(prime_rl).document]
