"""`prime-train prices`: shows the dated price table, and fills it from files and from price services."""

import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import json_text, message, painter, table, terminal_columns
from prime_train.core.errors import UserError
from prime_train.core.units import counted
from prime_train.prices import store
from prime_train.prices.price import Price, PriceRows, age_days
from prime_train.prices.refresh import SERVICES, RefreshResult, Service, has_key
from prime_train.prices.refresh import refresh as fetch
from prime_train.registry import gpus
from prime_train.toml.did_you_mean import nearest
from prime_train.views import prices as view
from prime_train.views.text import pick, sanitize

app = typer.Typer()

_PREVIEW_ROWS = 8


@app.command("show", short_help="Show the price table.")
def show(
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="h100-80gb", help="Every offer of one GPU.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Show the price of an hour of each GPU, on-demand and spot: lowest, median, highest, and the age.

    Examples:

      prime-train prices show

      prime-train prices show --gpu h100-80gb

      prime-train prices show --json | jq '.prices[] | select(.spot)'
    """
    today = store.today()
    known = store.load(today)
    wanted = None if gpu is None else _find_gpu(gpu)
    columns = terminal_columns(sys.stdout)
    document = view.as_json([price for price in known if wanted in (None, price.gpu)], today)
    if as_json:
        typer.echo(json_text(document))
    elif not document["prices"]:
        typer.echo(f"no price of {wanted}; prime-train prices refresh", err=True)
    elif wanted is not None:
        rows = view.offer_rows(document, painter(sys.stdout))
        typer.echo(table(rows, view.OFFER_HEADER, view.OFFER_RIGHT, columns, view.OFFER_LEAST))
    else:
        rows = view.gpu_rows(document, painter(sys.stdout))
        typer.echo(table(rows, view.GPU_HEADER, view.GPU_RIGHT, columns, view.GPU_LEAST))
    if warning := view.stale_warning(document["prices"]):
        typer.echo(warning, err=True)


@app.command("import", short_help="Read prices from a file.")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A vms.csv of SkyPilot, JSON of Prime Intellect or Vast, or TOML.")
    ],
    provider: Annotated[
        str, typer.Option("--provider", metavar="NAME", help="The cloud of a vms.csv.", show_default=False)
    ] = "",
    as_of: Annotated[
        str, typer.Option("--as-of", metavar="DATE", help="The day of the prices, else the file's.", show_default=False)
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the prices; write nothing.")] = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Read prices from a file into the table. They replace earlier prices of the same cloud.

    A file with an invalid price (NaN, negative, zero, absurd) is refused as a whole.

    Examples:

      prime-train prices import ~/.sky/catalogs/v8/lambda/vms.csv

      prime-train prices import offers.json --dry-run

      prime-train prices import vms.csv --provider nebius --as-of 2026-11-01
    """
    today = store.today()
    imported = store.read_price_file(file, today, provider, _check_date(as_of, today))
    prices = imported.rows.prices
    path = store.user_file() if dry_run else store.save(prices, today, whole=imported.whole)
    _report_left_out(imported.rows)
    document = view.as_json(prices, today)
    if as_json:
        document |= {"kind": imported.kind, "left_out": dict(imported.rows.left_out)}
        typer.echo(json_text(document | {"file": None if dry_run else str(path)}))
        return
    verb = "would go" if dry_run else "went"
    typer.echo(f"{counted(len(prices), 'price')} ({imported.kind}, as of {_span(prices)}) {verb} into {path}")
    rows = view.gpu_rows(document)
    columns = terminal_columns(sys.stdout)
    typer.echo(table(rows[:_PREVIEW_ROWS], view.GPU_HEADER, view.GPU_RIGHT, columns, view.GPU_LEAST))
    if len(rows) > _PREVIEW_ROWS:
        typer.echo(f"and {len(rows) - _PREVIEW_ROWS} more: prime-train prices show", err=True)


@app.command("refresh", short_help="Fetch today's prices from Prime Intellect and Vast.")
def refresh(
    provider: Annotated[
        list[str] | None,
        typer.Option("--provider", metavar="primeintellect|vast", help="Only this service; repeatable."),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Fetch today's prices from Prime Intellect (needs PRIME_API_KEY) and Vast (VAST_API_KEY is optional).

    Exit code 4: a service could not be reached. The prices of the other one are kept.

    Examples:

      PRIME_API_KEY=... prime-train prices refresh

      prime-train prices refresh --provider vast
    """
    today = store.today()
    answers = [fetch(service, os.environ, today.isoformat()) for service in _services(provider)]
    for answer in answers:
        if answer.problem is None:
            store.save(answer.rows.prices, today, whole=True)
    if as_json:
        typer.echo(json.dumps({"version": 1, "providers": [_answer_json(answer) for answer in answers]}, indent=1))
    for answer in answers:
        if answer.problem is not None:
            typer.echo(message(answer.problem, sys.stderr), err=True)
        elif not as_json:
            typer.echo(f"{answer.service.name}: {counted(len(answer.rows.prices), 'price')} of today")
        _report_left_out(answer.rows)
    if any(answer.problem is not None for answer in answers):
        raise typer.Exit(max(answer.problem.exit_code for answer in answers if answer.problem is not None))


def _find_gpu(gpu: str) -> str:
    """The id of a GPU; "rtx4090" is accepted for "rtx-4090". Raises UserError with the nearest name."""
    ids = {known.id.replace("-", ""): known.id for known in gpus.gpu_peaks()}
    plain = gpu.lower().replace("-", "").replace(" ", "")
    if plain in ids:
        return ids[plain]
    meant = next((known for short, known in ids.items() if plain and short.startswith(plain)), None)
    meant = meant or nearest(gpu, ids.values())
    raise UserError(
        what=f"no GPU is called {gpu}",
        where=f"--gpu {gpu}",
        why=f"did you mean {meant}?" if meant else "there are " + ", ".join(sorted(ids.values())),
        fix=f"prime-train prices show --gpu {meant}" if meant else "prime-train prices show",
    )


def _check_date(as_of: str, today: date) -> str:
    try:
        age = age_days(as_of, today)
        why = "it is in the future" if age is not None and age < 0 else ""
    except ValueError as error:
        why = str(error)
    if why:
        raise UserError("that is not a date", f"--as-of {as_of}", why, f"--as-of {today}")
    return as_of


def _services(names: list[str] | None) -> list[Service]:
    """The named services; without names, every service that has its key. Prints which ones lack it."""
    known = {service.id: service for service in SERVICES}
    for name in names or ():
        if name not in known:
            meant = nearest(name, known)
            raise UserError(
                what=f"no price service is called {name}",
                where=f"--provider {name}",
                why=f"did you mean {meant}?" if meant else f"there are {', '.join(known)}",
                fix=f"--provider {meant or 'vast'}",
            )
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    for service in SERVICES:
        if not has_key(service):
            typer.echo(f"{service.name} is skipped: {service.key_variable} is not set", err=True)
    return [service for service in SERVICES if has_key(service)]


def _answer_json(answer: RefreshResult) -> dict[str, Any]:
    error = answer.problem
    return {
        "provider": answer.service.id,
        "prices": len(answer.rows.prices),
        "left_out": dict(answer.rows.left_out),
        "faults": len(answer.rows.faults),
        "problem": error and pick(error, "where", "what", "why", "fix"),
    }


def _report_left_out(rows: PriceRows) -> None:
    for why, count in rows.left_out:
        typer.echo(f"left out {count}: {sanitize(why)}", err=True)
    for fault in rows.faults[:3]:
        typer.echo(f"left out: {sanitize(fault.where)}: {sanitize(fault.what)} ({fault.why})", err=True)


def _span(prices: tuple[Price, ...]) -> str:
    dates = sorted({price.as_of or "unknown" for price in prices})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
