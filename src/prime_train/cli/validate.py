"""`prime-train validate`: lint, and what this machine says to the run. Starts nothing, keeps nothing."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.errors import ExitCode


def validate(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A config file, a preset's name, or - for standard input.")
    ],
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Check a config against this machine: limits, memory, disk, GPUs, files, packages.

    A fact that cannot be had is shown as skipped. Exit code 1 where there is a finding at error level.

    Examples:

      prime-train validate run.toml

      prime-train validate quickstart --json
    """
    from prime_train.cli.render import paint
    from prime_train.dialects.read import read_config
    from prime_train.facts.facts import Facts, to_json
    from prime_train.facts.gather import gather
    from prime_train.rules import judge
    from prime_train.views import findings as view

    text, path = read_config(config)
    verdict, facts = judge.lint(text, path), Facts()
    if verdict.run is not None:
        facts = gather(verdict.run, Path(verdict.run.run.dir).expanduser() / verdict.run.run.name, judge.needs())
        verdict = judge.validate(text, path, facts)
    if as_json:
        import json

        print(json.dumps(view.validate_json(verdict, to_json(facts)), indent=1, ensure_ascii=False))  # noqa: T201 - the result goes to stdout
    else:
        blocks = [view.full(verdict, lambda text, style: paint(text, style, sys.stdout)), view.tally(verdict)]
        print("\n".join(block for block in blocks if block))  # noqa: T201 - the result goes to stdout
    if not verdict.ok:
        raise typer.Exit(ExitCode.FINDINGS)
