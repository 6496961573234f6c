"""`prime-train find`: the offers on which a run fits, ranked by what the whole of it costs. Rents nothing."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.errors import ExitCode, UserError

if TYPE_CHECKING:
    from prime_train.cli.finding import Found


def find(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A config file or a preset's name.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="A model alone: its full fine-tuning.", show_default=False),
    ] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option("--max-usd-per-hour", help="No dearer offer.", show_default=False)
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Also offers that can be taken away.")] = False,
    gpus_max: Annotated[int, typer.Option("--gpus-max", min=1, help="No more GPUs in all.")] = 64,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows to show.")] = 15,
    model_config: Annotated[
        str | None,
        typer.Option("--model-config", metavar="FILE", help="The config.json of the model.", show_default=False),
    ] = None,
    prices: Annotated[
        str | None, typer.Option("--prices", metavar="FILE", help="Prices instead of the table.", show_default=False)
    ] = None,
    prime_rl: Annotated[
        str | None,
        typer.Option("--prime-rl", metavar="GENERATION", help="Of prime-rl files that name none.", show_default=False),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no hub: the cache alone.")] = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Find the cheapest offers on which a run fits.

    Each offer of the price table is tried with its GPUs, the run laid over all of them: does the memory fit, how long
    does it take, what does the whole run cost with its start and its interruptions. Exit code 1 where none fits.

    Examples:

      prime-train find rl.toml --max-usd-per-hour 20

      prime-train find run.toml --spot --gpus-max 8

      prime-train find --model Qwen/Qwen3-8B --json | jq '.offers[0]'
    """
    from prime_train.cli import finding
    from prime_train.estimate.offers import Limits
    from prime_train.prices import store
    from prime_train.views import offers as view
    from prime_train.views.prices import stale_warning

    limits = Limits(None, spot, max_usd_per_hour, gpus_max)
    found = finding.found(finding.Asked(config, model, limits, model_config, prices, prime_rl, offline))
    today = store.today()
    if as_json:
        import json

        document = view.document(found.title, found.ranking, today, found.key)
        print(json.dumps(document, indent=1, ensure_ascii=False))  # noqa: T201 - the result goes to stdout
    elif found.ranking.offers:
        from prime_train.cli.render import paint, table

        shown = table(view.rows(found.ranking.offers[:top]), view.HEADER, right=view.RIGHT)
        told = [paint(found.title, "bold", sys.stdout), shown, view.settings_line(found.ranking, found.key)]
        print("\n".join(line for line in told if line))  # noqa: T201 - the result goes to stdout
    _talk(found, top, stale_warning([offer.price for offer in found.ranking.offers], today))
    if not found.ranking.offers:
        raise _none(found)


def _talk(found: "Found", top: int, warning: str | None) -> None:
    from prime_train.estimate.interruptions import shipped_rates
    from prime_train.views.offers import left_out_lines

    more = len(found.ranking.offers) - top
    if more > 0:
        typer.echo(f"{more} more fit: --top {len(found.ranking.offers)}", err=True)
    if found.ranking.offers:
        start = shipped_rates().restart_s
        span = f"{start.low / 60:.0f} to {start.high / 60:.0f} min"
        typer.echo(f"counted: {span} for the start and for each restart (assumed)", err=True)
    for line in left_out_lines(found.ranking):
        typer.echo(line, err=True)
    if warning:
        typer.echo(warning, err=True)


def _none(found: "Found") -> UserError:
    reasons = "; ".join(f"{why} ({count})" for why, count in found.ranking.left_out[:3])
    closest = found.ranking.closest
    fix = "raise the limits: --spot, --gpus-max, --max-usd-per-hour"
    if closest is not None:
        gpus = f"{closest.price.gpus * closest.machines}x{closest.price.gpu}"
        needed, usable = closest.judgement.needed_gib, closest.judgement.usable_gib
        reasons += f"; {gpus} comes closest: {needed:.0f} GiB are needed of {usable:.0f}"
        fix = f"prime-train estimate {found.name if found.is_config else 'CONFIG'} --gpus {gpus} says what to change"
    return UserError(
        what=f"none of {len(found.prices)} offers will do" if found.prices else "the price table is empty",
        where=f"prime-train find {found.name}",
        why=reasons or "there is no price to rank",
        fix=fix,
        exit_code=ExitCode.FINDINGS,
    )
