"""`prime-train config diff`: the values that differ between two configs, and what each difference does."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from prime_train.cli.config.source import ConfigSource, config_argument, find_source
from prime_train.cli.estimate.inputs import EstimateOptions
from prime_train.cli.terminal.options import AsJson, Generation, ModelConfig, NoColor
from prime_train.cli.terminal.output import print_json, show_count
from prime_train.cli.terminal.render import labelled, painter, table, terminal_columns
from prime_train.config.compare import compare
from prime_train.config.differences import Difference
from prime_train.config.parsed_config import Reading
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.redaction import own_secrets
from prime_train.programs import list_refused
from prime_train.supervise.services.wandb_links import find_wandb_link
from prime_train.views.config import differences as view
from prime_train.views.run.final_metrics import list_metric_differences


def diff(
    before: Annotated[str, config_argument("A")],
    after: Annotated[str, config_argument("B")],
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="8xh100-80gb", help="The GPUs of the estimate. Default: those here.", show_default=False
        ),
    ] = None,
    model_config: ModelConfig = None,
    prime_rl: Generation = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """The values that differ between two configs, and what each difference does.

    Order, comments, the spelling of a number and defaults that are written out do not count, and a key of another
    generation of prime-rl is the same key. "!" marks what a resume would refuse. Exit code 0: equal. 1: they differ.
    2 or 4: one of them cannot be read.

    Examples:

      prime-train config diff first-run second-run

      prime-train config diff first-run@1 rl.toml --gpus 8xh100-80gb

      prime-train config diff HEAD:./rl.toml rl.toml --json
    """
    # Nothing is fetched: a model that is not known on this machine has no estimate.
    options = EstimateOptions("", gpus, model_config, offline=True)
    document = _compare((find_source(before), find_source(after)), options, prime_rl)
    if as_json:
        print_json(document)
    else:
        _print(document)
    if not document["equal"]:
        raise typer.Exit(ExitCode.FINDINGS)


def _print(document: view.Document) -> None:
    """Side by side on a terminal, else unified. What is known beside the values goes to standard error."""
    paint, columns = painter(sys.stdout), terminal_columns(sys.stdout)
    titles = document["before"]["title"], document["after"]["title"]
    if document["equal"]:
        typer.echo(f"{titles[0]} and {titles[1]} have the same values", err=True)
    elif columns is None:
        typer.echo(view.unified(document, paint))
    else:
        header = ("", "KEY", *titles, "NOTE")
        typer.echo(table(view.side_by_side(document, paint), header, (), columns))
    if lines := view.remarks(document):
        typer.echo(labelled("beside the values", lines, sys.stderr), err=True)


def _compare(
    sources: tuple[ConfigSource, ConfigSource], options: EstimateOptions, prime_rl: str | None
) -> dict[str, Any]:
    """The document for `config diff`."""
    old, new = (source.read(prime_rl) for source in sources)
    found = compare(old, new)
    first, second = (source.run_dir for source in sources)
    are_two = first is not None and second is not None and first != second
    more = view.ConfigNotes(
        refused=list_refused(old.run, new.run) if old.run is not None and new.run is not None else (),
        metrics=list_metric_differences(first, second) if are_two and first and second else {},
        links=[None if run is None else find_wandb_link(run) for run in (first, second)],
    )
    if found.differences:
        more = _add_impacts(more, (old, new), found.differences, options)
    return view.as_document([source.title for source in sources], found, more, own_secrets())


def _add_impacts(
    more: view.ConfigNotes,
    readings: tuple[Reading, Reading],
    found: tuple[Difference, ...],
    options: EstimateOptions,
) -> view.ConfigNotes:
    """The notes with what the estimator computes for the differences, or with the reason why it computes nothing."""
    from prime_train.cli.config.impact import MOST, compute_impacts, compute_total

    impacts: dict[str, view.ConfigImpact] = {}
    try:
        total = compute_total(*readings, options)
        with show_count(min(len(found), MOST), "estimating") as advance:
            for key, impact in compute_impacts(*readings, found, options):
                impacts[key] = impact
                advance(1)
    except UserError as error:
        fix = error.fix if options.gpus is not None else "--gpus 8xh100-80gb estimates for these GPUs"
        note = f"what the differences do to memory and speed is not known: {error.what}; {fix}"
        return more._replace(notes=(*more.notes, note))
    left = len(found) - MOST
    notes = (f"{left} more differences were not estimated one by one",) if left > 0 else ()
    return more._replace(total=total, impacts=impacts, notes=(*more.notes, *notes))
