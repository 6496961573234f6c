"""`prime-train find`: the offers on which a run fits or likely fits, ranked by verdict and cost. Rents nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, NamedTuple

import typer

from prime_train.cli.estimate import inputs
from prime_train.cli.estimate.inputs import EstimateOptions
from prime_train.cli.terminal.options import AsJson, Generation, ModelConfig, NoColor, Offline, Prices
from prime_train.cli.terminal.render import fit_terminal, json_text, paint, painter, table, terminal_columns
from prime_train.config import detect
from prime_train.config.foreign.recipe.draft import with_run
from prime_train.config.prime_rl.schema import newest
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import GIB
from prime_train.estimate.cost.offers import Judge, Judgement, OfferLimits, Ranking, rank
from prime_train.estimate.cost.run_cost import shipped_rates
from prime_train.estimate.estimate import estimate
from prime_train.estimate.hardware import hardware_from_entry
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.relayout import Impossible, TrainedWork, layout_settings, relayout, work_of_run
from prime_train.prices import store
from prime_train.prices.price import Price
from prime_train.registry import gpus as gpu_registry
from prime_train.spec import RunSpec
from prime_train.spec.answers import trains
from prime_train.views import prices as view

# The run of --model: a common fine-tuning, as a config of prime-rl's sft.
_FINE_TUNING = """max_steps = 1000

[prime_train]
prime_rl = "{prime_rl}"

[model]
name = "{model}"
seq_len = 4096

[data]
seq_len = 4096
batch_size = 64
micro_batch_size = 1

[ckpt]
interval = 100
"""
_FINE_TUNING_TITLE = (
    "full fine-tuning with prime-rl's sft: 1,000 steps of 64 sequences of 4,096 tokens, a checkpoint each 100"
)


def find(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A config file or a preset's name.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="A model alone: its full fine-tuning.", show_default=False),
    ] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option("--max-usd-per-hour", help="The highest price per hour.", show_default=False)
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Include spot offers, which the cloud can take back.")] = False,
    gpus_max: Annotated[int, typer.Option("--gpus-max", min=1, help="The highest number of GPUs in all.")] = 64,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows to show.")] = 15,
    model_config: ModelConfig = None,
    prices: Prices = None,
    prime_rl: Generation = None,
    offline: Offline = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Find the cheapest offers on which a run fits.

    Spreads the run over the GPUs of each offer in the price table, and estimates memory, time, and the cost of the
    whole run with its start and its interruptions. Every offer trains on as many tokens. Offers on which the run only
    likely fits come last. Exit code 1: the run fits on no offer.

    Examples:

      prime-train find rl.toml --max-usd-per-hour 20

      prime-train find run.toml --spot --gpus-max 8

      prime-train find --model Qwen/Qwen3-8B --json | jq '.offers[0]'
    """
    options = EstimateOptions(config or "", None, model_config, None, prices, prime_rl, offline)
    found = _rank_offers(options, model, OfferLimits(None, spot, max_usd_per_hour, gpus_max))
    document = view.find_json(found.title, found.work, found.ranking, store.today(), found.key)
    document["assumptions"] = list(found.assumptions)
    offers = document["offers"]
    if as_json and offers:
        typer.echo(json_text(document))
    elif offers:
        rows = view.ranked_rows(document, top, painter(sys.stdout))
        shown = table(rows, view.RANKED_HEADER, view.RANKED_RIGHT, terminal_columns(sys.stdout), view.RANKED_LEAST)
        title = paint(found.title, "bold", sys.stdout)
        lines = [title, view.work_line(document), shown, view.settings_line(document)]
        typer.echo(fit_terminal("\n".join(line for line in lines if line), sys.stdout))
    if len(offers) > top:
        typer.echo(f"{len(offers) - top} more fit: --top {len(offers)}", err=True)
    if offers:
        start = shipped_rates().restart_s
        span = f"{start.low / 60:.0f} to {start.high / 60:.0f} min"
        typer.echo(f"counted: {span} for the start and for each restart (assumed)", err=True)
    for line in found.assumptions:
        typer.echo(f"assumed: {line}", err=True)
    for line in view.left_out_lines(document):
        typer.echo(line, err=True)
    if warning := view.stale_warning(offers):
        typer.echo(warning, err=True)
    if not offers:
        error = _no_offer(found)
        error.document = document
        raise error


class _Found(NamedTuple):
    """The ranking, the prices it is made from, and the run.

    The run is its name, its title, and `key`, which maps a RunSpec field to the key of the user's file. `config` is ""
    with --model.
    """

    config: str
    name: str
    title: str
    work: TrainedWork
    ranking: Ranking
    prices: tuple[Price, ...]
    key: Callable[[str], str]
    assumptions: tuple[str, ...] = ()  # what the file of another program leaves open


def _rank_offers(options: EstimateOptions, model: str | None, limits: OfferLimits) -> _Found:
    """The offers on which the run fits, cheapest first. Raises UserError if an input is missing."""
    dearest = limits.max_usd_per_hour
    if dearest is not None and not (math.isfinite(dearest) and dearest > 0):
        raise UserError(
            what=f"{dearest:g} USD an hour",
            where="--max-usd-per-hour",
            why="an offer costs more than nothing",
            fix="--max-usd-per-hour 20",
        )
    run, shape, title, key, lines = _find_run(options, model)
    prices = inputs.read_prices(options)
    limits = limits._replace(checkpoint_steps=run.checkpoint.interval_steps)
    ranking = rank(prices, _judge_offers(run, shape), limits, shipped_rates())
    return _Found(
        options.config, options.config or model or title, title, work_of_run(run), ranking, prices, key, lines
    )


def _judge_offers(run: RunSpec, shape: ModelShape) -> Judge:
    """A function that estimates memory and time of the run on a number of GPUs of one type."""
    known = {gpu.id: gpu for gpu in gpu_registry.gpu_peaks()}

    @cache
    def judge(gpu: str, gpus: int) -> Judgement | Impossible:
        hardware = hardware_from_entry(known[gpu], gpus)
        laid = relayout(run, hardware)
        if isinstance(laid, Impossible):
            return laid
        try:
            estimated = estimate(laid.run, hardware, shape)
        except UserError as error:
            return Impossible(f"{gpu}: {error.what}")
        if estimated.time is None:
            return Impossible("it trains nothing, so it has no end to pay for")
        fullest = max(role.memory.need.high for role in estimated.memory.roles)
        usable_gib, step_s, settings = hardware.usable_bytes / GIB, estimated.time.step_s, layout_settings(run, laid)
        return Judgement(estimated.chance, fullest / GIB, usable_gib, laid.work, step_s, settings)

    return judge


def _find_run(
    options: EstimateOptions, model: str | None
) -> tuple[RunSpec, ModelShape, str, Callable[[str], str], tuple[str, ...]]:
    """The run, the shape of its model, its title, the names of its fields in the file, and what that leaves open."""
    draft = None
    if bool(options.config) == (model is not None):
        raise UserError(
            what="both a config and a model are given" if options.config else "a config or a model is missing",
            where="prime-train find",
            why="offers are ranked for one run",
            fix="prime-train find run.toml, or prime-train find --model Qwen/Qwen3-8B",
        )
    if model is None:
        reading = inputs.parse_config(options)
        draft = inputs.draft_of(reading, 1)  # the work of a step is counted on one GPU, then spread
        reading = reading if draft is None else with_run(reading, draft)
        title = reading.document.path
    else:
        title = f"{model}: {_FINE_TUNING_TITLE}"
        reading = detect.read(_FINE_TUNING.format(model=_check_quotable(model), prime_rl=newest()), "sft.toml")
    run = inputs.check_run(reading)
    if not trains(run) and run.server is None:
        raise UserError(
            what="it trains nothing",
            where=reading.document.path,
            why="offers are ranked by the cost of a whole run, and a server has no end to pay for",
            fix=f"prime-train estimate {options.config} --gpus 8xh100-80gb checks whether it fits on such GPUs",
            exit_code=ExitCode.FINDINGS,
        )
    shape, lines = inputs.find_shape(run, reading, options), () if draft is None else draft.lines
    return run, shape, title, reading.key, lines


def _check_quotable(model: str) -> str:
    if model.strip() and model.isprintable() and not set(model) & set('"\\'):
        return model
    raise UserError(
        what="that is not the name of a model",
        where="--model",
        why="a model is an id on the Hugging Face hub or a folder",
        fix="--model Qwen/Qwen3-8B",
    )


def _no_offer(found: _Found) -> UserError:
    reasons = "; ".join(f"{why} ({count})" for why, count in found.ranking.left_out[:3])
    closest = found.ranking.closest
    fix = "raise the limits: --spot, --gpus-max, --max-usd-per-hour"
    if closest is not None:
        gpus = f"{closest.price.gpus * closest.machines}x{closest.price.gpu}"
        needed, usable = closest.judgement.needed_gib, closest.judgement.usable_gib
        reasons += f"; {gpus} comes closest: {needed:.0f} GiB are needed of {usable:.0f}"
        fix = f"prime-train estimate {found.config or 'CONFIG'} --gpus {gpus} advises what to change"
    return UserError(
        what=f"none of {len(found.prices)} offers is suitable" if found.prices else "the price table is empty",
        where=f"prime-train find {found.name}",
        why=reasons or "there is no price to rank",
        fix=fix,
        exit_code=ExitCode.FINDINGS,
    )
