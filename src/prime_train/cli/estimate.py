"""`prime-train estimate`: what a run needs and costs: memory by term, speed, money. Starts nothing, keeps nothing."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.errors import ExitCode

if TYPE_CHECKING:
    from prime_train.cli.estimating import Found
    from prime_train.estimate.estimate import Estimate
    from prime_train.views.estimate_json import More


def estimate(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A config file, a preset's name, or - for standard input.")
    ],
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="8xh100-80gb", help="The GPUs. Without it: those of this machine.", show_default=False
        ),
    ] = None,
    model_config: Annotated[
        str | None,
        typer.Option(
            "--model-config", metavar="FILE", help="The config.json of the model, or its folder.", show_default=False
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="RUN_OR_METRICS",
            help="An earlier run, or its metrics: what it was measured at narrows the interval.",
            show_default=False,
        ),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            "--prices", metavar="FILE", help="Prices to reckon with, instead of the table.", show_default=False
        ),
    ] = None,
    prime_rl: Annotated[
        str | None,
        typer.Option(
            "--prime-rl", metavar="GENERATION", help="Of prime-rl files that name none, as 2026-08.", show_default=False
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Also trace a block and the head on fake tensors. Needs the train extra.")
    ] = False,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also FSDP, HSDP, DDP and TP over 1 to all GPUs: memory and traffic.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no hub: the cache alone.")] = False,
    by_term: Annotated[bool, typer.Option("--by-term", help="Every term with its formula and source.")] = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Will it fit, how long does it take, what does it cost.

    Memory of each role on each GPU, by term, with its interval; the verdict is taken from the upper bound. A step and
    the whole run in time and money, low, typical and high. Exit code 1 where it does not fit.

    Examples:

      prime-train estimate rl.toml --gpus 8xh100-80gb

      prime-train estimate run.toml --gpus rtx-4090 --model-config config.json --by-term

      prime-train estimate rl.toml --gpus 8xh100-80gb --calibrate runs/first --json
    """
    from prime_train.cli import estimating
    from prime_train.views.estimate_json import More, document

    found = estimating.estimated(
        estimating.Asked(config, gpus, model_config, calibrate, prices, prime_rl, offline),
    )
    more = More(estimating.traced(found) if exact else (), estimating.scaled(found) if scaling else ())
    if as_json:
        import json

        print(json.dumps(document(found.estimate, more), indent=1, ensure_ascii=False))  # noqa: T201 - the result goes to stdout
    else:
        print(_text(found.estimate, more, by_term=by_term))  # noqa: T201 - the result goes to stdout
    _warn(found)
    if not found.estimate.fits:
        raise typer.Exit(ExitCode.FINDINGS)


def _warn(found: "Found") -> None:
    """Of prices that are old, or of unknown age, where the cost is reckoned from them."""
    if not found.estimate.costs:
        return
    from prime_train.prices import store
    from prime_train.views.prices import stale_warning

    warning = stale_warning(found.prices, store.today())
    if warning:
        typer.echo(warning, err=True)


def _text(estimate: "Estimate", more: "More", *, by_term: bool) -> str:
    from prime_train.cli.render import paint, table
    from prime_train.views import estimate as view

    blocks = [view.text(estimate, lambda words, style: paint(words, style, sys.stdout), by_term=by_term)]
    if more.scaling:
        blocks.append(table(view.scaling_rows(more.scaling), view.SCALING, right=view.SCALING_RIGHT))
    if more.exact:
        blocks.append(view.exact(more.exact))
    return "\n\n".join(blocks)
