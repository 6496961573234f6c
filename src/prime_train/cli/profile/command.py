"""`prime-train profile`: trains a few steps, and shows where their time goes and what to change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.profile.sources import (
    Collected,
    ProfileOptions,
    compare_with_config,
    read_file,
    read_prime_rl,
    refuse_trainer,
    run_script,
)
from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.output import write_file
from prime_train.cli.terminal.render import fit_terminal, json_text, painter, table, terminal_columns
from prime_train.config import detect
from prime_train.config.detect import read_config
from prime_train.core.errors import ExitCode, UserError
from prime_train.profile.report import report_of
from prime_train.spec.answers import program_name
from prime_train.views import profile as view
from prime_train.views.profile import document
from prime_train.views.profile_page import page

_MOST_STEPS = 1_000


def profile(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A run.toml, a preset's name, a config of prime-rl, a Python script, or a file of spans or metrics.",
        ),
    ],
    steps: Annotated[int, typer.Option("--steps", min=1, max=_MOST_STEPS, help="Steps that count.")] = 5,
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=0, max=_MOST_STEPS, help="First steps, which do not count.")
    ] = 2,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replaces one value of the config; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FOLDER", help="Keep the run and its spans here.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a timeline.", show_default=False)
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a Chrome trace by torch.profiler of one more step.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="8xh100-80gb", help="Compare with the estimate for these GPUs.", show_default=False
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="CONFIG",
            help="Compare a script, or a file of spans or metrics, with the estimate for this config, also one of "
            "another trainer.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Where the time of a few steps goes, and what to change.

    Trains a few steps in a folder of its own, which is deleted afterwards; the run itself is neither resumed nor
    changed. Shows the share of each component on the critical path, the class of the bottleneck, and changes with
    their expected gain.

    Examples:

      prime-train profile run.toml --steps 10 --html profile.html

      prime-train profile rl.toml --json > profile.json

      prime-train estimate rl.toml --gpus 8xh100-80gb --calibrate profile.json

      prime-train profile spans.jsonl --compare axolotl.yaml --gpus 8xh100-80gb
    """
    options = ProfileOptions(config, steps, warm_up, tuple(overrides or ()), output, trace, gpus)
    comparison = None if compare is None else compare_with_config(compare, gpus)  # before the steps are trained
    collected = _collect(options)
    if comparison is not None:
        collected = collected._replace(compare=comparison)
    report = report_of(collected.title, collected.spans, collected.imitation_steps + warm_up, collected.setup, steps)
    if report is None:
        raise UserError(
            what=f"no step is left after the warm-up; {len(collected.spans)} spans were read",
            where=config,
            why="shares are measured over whole steps",
            fix="more steps, or --warm-up 0",
            exit_code=ExitCode.FINDINGS,
        )
    report = report._replace(comparisons=collected.compare(report.measured), notes=collected.notes)
    shown = document(report)
    if html is not None:
        write_file(html, page(shown, report.measured))
    typer.echo(json_text(shown) if as_json else _render(shown))


def _collect(options: ProfileOptions) -> Collected:
    """The spans of what the config names. Raises UserError."""
    path = Path(options.config)
    if path.suffix == ".jsonl" or path.is_dir():
        return read_file(path)
    if path.suffix == ".py":
        return run_script(path, options)
    text, shown = read_config(options.config)
    reading = detect.read(text, shown)
    if reading.foreign is not None and reading.run is None:
        from prime_train.config.foreign.read import refuse_command  # here, because most configs are TOML

        fix = f"write spans in its script (docs/profile.md), then: prime-train profile spans.jsonl --compare {shown}"
        raise refuse_command(reading, "profile", fix)
    if reading.run is not None and reading.run.command is not None:
        raise refuse_trainer(reading.run, reading.run.command, shown)
    if reading.run is not None and program_name(reading.run) != "bundled":
        return read_prime_rl(reading.run, options)
    from prime_train.cli.profile.short_run import run_steps  # imports the supervisor

    return run_steps(options, reading.run)


def _render(shown: dict[str, Any]) -> str:
    columns = terminal_columns(sys.stdout)
    least_needed = (view.HEADER.index("p90"), view.HEADER.index("p50"))
    text = view.text(
        shown, painter(sys.stdout), lambda rows: table(rows, view.HEADER, view.RIGHT, columns, least_needed)
    )
    return fit_terminal(text, sys.stdout)
