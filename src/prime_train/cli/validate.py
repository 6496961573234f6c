"""`prime-train validate`: lint, and what machine and services say to the run. Starts no run, keeps nothing."""

import sys
from typing import Annotated

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.errors import ExitCode


def validate(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A config file, a preset's name, or - for standard input.")
    ],
    offline: Annotated[bool, typer.Option("--offline", help="Open no socket: ask no service.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also make a CUDA context, start vLLM, write to the disk: up to minutes.")
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="8xh100-80gb", help="Judge for another machine's GPUs.", show_default=False),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The interpreter that the run will use.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Check a config against this machine: limits, memory, disk, GPUs, ports, packages, logins.

    A fact that cannot be had is shown as skipped. Exit code 1 where there is a finding at error level.

    Examples:

      prime-train validate run.toml

      prime-train validate rl.toml --python ~/prime-rl/.venv/bin/python --deep

      prime-train validate rl.toml --gpus 8xh100-80gb --offline

      prime-train validate quickstart --json
    """
    from prime_train.cli.render import paint
    from prime_train.dialects.read import read_config
    from prime_train.facts import asked
    from prime_train.facts.facts import Facts, to_json
    from prime_train.facts.gather import Manner, gather
    from prime_train.facts.gpus import of_another_machine
    from prime_train.programs import program_of
    from prime_train.rules import judge
    from prime_train.views import findings as view

    manner = Manner(offline, deep, python, None if gpus is None else of_another_machine(gpus))
    text, path = read_config(config)
    verdict, facts = judge.lint(text, path), Facts()
    if verdict.run is not None:
        look = program_of(verdict.run).run_folder
        facts = gather(verdict.run, asked.run_dir(verdict.run), judge.needs(), manner, look)
        verdict = judge.validate(text, path, facts)
    if as_json:
        import json

        print(json.dumps(view.validate_json(verdict, to_json(facts)), indent=1, ensure_ascii=False))  # noqa: T201 - the result goes to stdout
    else:
        blocks = [view.full(verdict, lambda text, style: paint(text, style, sys.stdout)), view.tally(verdict)]
        print("\n".join(block for block in blocks if block))  # noqa: T201 - the result goes to stdout
    if not verdict.ok:
        raise typer.Exit(ExitCode.FINDINGS)
