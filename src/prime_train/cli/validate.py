"""`prime-train validate`: lint, and checks against this machine and its services. Starts no run, writes nothing."""

import sys
from typing import Annotated

import typer

from prime_train.cli.lint.interpreters import announce_interpreters
from prime_train.cli.terminal.options import AsJson, Configs, NoColor, Python, Strict
from prime_train.cli.terminal.render import fit_terminal, json_text, painter
from prime_train.config import detect
from prime_train.config.detect import read_config
from prime_train.config.foreign.named_files import find_missing, find_model_folders
from prime_train.config.foreign.recipe.draft import read_run
from prime_train.core.errors import ExitCode
from prime_train.facts import requirements
from prime_train.facts.facts import Facts, NotKnown, to_json
from prime_train.facts.files import add_named
from prime_train.facts.gather import ProbeOptions, gather
from prime_train.facts.host import parse_gpus
from prime_train.programs import program_of
from prime_train.rules import judge
from prime_train.views import findings as view


def validate(
    configs: Configs,
    offline: Annotated[bool, typer.Option("--offline", help="Open no socket: contact no service.")] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also make a CUDA context, start vLLM, open tasksets, write to the disk; takes minutes."
        ),
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="8xh100-80gb", help="GPUs of another machine to judge for.", show_default=False),
    ] = None,
    python: Python = None,
    strict: Strict = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Check a config against this machine: limits, memory, disk, GPUs, ports, packages, logins.

    Where prime-rl is installed, its own classes are asked, too. A check is skipped, with the reason, if a fact that it
    needs cannot be found. Exit code 1: a finding is at error level, or with --strict at warning level.

    Examples:

      prime-train validate run.toml

      prime-train validate rl.toml --python ~/prime-rl/.venv/bin/python --deep

      prime-train validate rl.toml --gpus 8xh100-80gb --offline

      prime-train validate quickstart --json

      prime-train validate base.toml + overlay.toml --strict
    """
    manner = ProbeOptions(offline, deep, python, None if gpus is None else parse_gpus(gpus))
    parts = tuple(read_config(path) for path in detect.split_config(detect.join_configs(configs)))
    reading = detect.read(*parts[0]) if len(parts) == 1 else detect.read_merged(parts)
    reading = read_run(reading, None if gpus is None else len(parse_gpus(gpus).devices))
    run, facts = reading.run, None
    if run is None and reading.foreign is not None:
        typer.echo(
            "note: the file alone is checked: it leaves open what its memory depends on, or trains nothing", err=True
        )
    if run is not None:
        announce_interpreters(run, python)
        program = program_of(run)
        facts = gather(run, requirements.run_dir(run), judge.needs(), manner, program.run_folder)
        missing, folders = find_missing(reading.foreign or ()), find_model_folders(reading.foreign or ())
        facts = add_named(facts, missing, folders)
        named = (*missing.values(), *folders.values())
        reading = reading._replace(keys={**reading.keys, **dict(zip(named, named, strict=True))})
        refused = program.refusals(reading, python)  # by the program that is installed
        if isinstance(refused, NotKnown):
            typer.echo(f"note: {refused.reason}", err=True)
        else:
            reading = reading._replace(faults=(*reading.faults, *refused))
    verdict = judge.judge(reading, facts)
    if as_json:
        document = view.validate_json(verdict, to_json(facts or Facts()))
        typer.echo(json_text(document))
    else:
        blocks = [view.full(verdict, painter(sys.stdout)), view.tally(verdict)]
        typer.echo(fit_terminal("\n".join(block for block in blocks if block), sys.stdout))
    if not verdict.passes(strict=strict):
        raise typer.Exit(ExitCode.FINDINGS)
