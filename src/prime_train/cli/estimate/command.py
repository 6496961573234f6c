"""`prime-train estimate`: memory by term, time and cost of a run. Starts nothing, writes nothing."""

from __future__ import annotations

import sys
from typing import Annotated, NamedTuple

import typer

from prime_train.cli.estimate import inputs
from prime_train.cli.estimate.inputs import EstimateOptions
from prime_train.cli.terminal.options import AsJson, Generation, ModelConfig, NoColor, Offline, OptionalConfigs, Prices
from prime_train.cli.terminal.render import fit_terminal, json_text, painter, table, terminal_columns
from prime_train.config.detect import join_configs
from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.advice import Case, advise, setup_speed
from prime_train.estimate.estimate import Estimate
from prime_train.estimate.estimate import estimate as estimate_run
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.open_fields import explain, keys_of
from prime_train.estimate.time.scaling import ScaledLayout, scale
from prime_train.estimate.values import Hardware
from prime_train.prices import store
from prime_train.prices.price import Price
from prime_train.spec import RunSpec
from prime_train.views import prices as prices_view
from prime_train.views.estimate import text as view
from prime_train.views.estimate.document import document


def estimate(
    configs: OptionalConfigs = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="8xh100-80gb", help="The GPUs. Default: those of this machine.", show_default=False
        ),
    ] = None,
    gpu_memory_gib: Annotated[
        float | None,
        typer.Option("--gpu-memory-gib", help="GiB of one GPU that torch can see, for any GPU.", show_default=False),
    ] = None,
    gpu_bf16_tflops: Annotated[
        float | None,
        typer.Option("--gpu-bf16-tflops", help="Its dense bf16 peak; both together.", show_default=False),
    ] = None,
    model_config: ModelConfig = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="RUN_OR_METRICS",
            help="An earlier run or its metrics: its measurements narrow the interval.",
            show_default=False,
        ),
    ] = None,
    calibrate_config: Annotated[
        str | None,
        typer.Option("--calibrate-config", help="The config of that run, if its folder has none.", show_default=False),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps of the run, in place of the config's.", show_default=False),
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option("--target-loss", help="Steps until this loss, by the curve of --calibrate.", show_default=False),
    ] = None,
    prices: Prices = None,
    prime_rl: Generation = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also FSDP, HSDP, DDP and TP over 1 to all GPUs: memory and traffic.")
    ] = False,
    offline: Offline = False,
    from_command: Annotated[
        str | None,
        typer.Option(
            "--from-command",
            metavar="COMMAND",
            help="The command line of another trainer, in place of a config. It is read, not run.",
            show_default=False,
        ),
    ] = None,
    by_term: Annotated[bool, typer.Option("--by-term", help="Show every term with its formula and source.")] = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Will it fit, how long does it take, what does it cost.

    Memory of each role on each GPU, by term, with its interval. The run fits if the upper bound fits, and likely fits
    if the typical value does. Low, typical and high time and cost of a step and of the whole run. Exit code 1: the run
    does not fit.

    Examples:

      prime-train estimate rl.toml --gpus 8xh100-80gb

      prime-train estimate run.toml --gpus rtx-4090 --model-config config.json --by-term

      prime-train estimate rl.toml --gpus 8xh100-80gb --calibrate runs/first --json

      prime-train estimate --from-command "accelerate launch -m axolotl.cli.train qlora.yaml" --gpus 8xh100-80gb
    """
    described = (gpu_memory_gib, gpu_bf16_tflops, calibrate_config, steps, target_loss, from_command)
    config = _name_input(configs, from_command)
    found = _estimate(EstimateOptions(config, gpus, model_config, calibrate, prices, prime_rl, offline, *described))
    shown = document(found.estimate, _scale(found) if scaling else ())
    if as_json:
        typer.echo(json_text(shown))
    else:
        blocks = [view.text(shown, painter(sys.stdout), by_term=by_term)]
        if rows := view.scaling_rows(shown):
            blocks.append(
                table(rows, view.SCALING, view.SCALING_RIGHT, terminal_columns(sys.stdout), view.SCALING_LEAST)
            )
        typer.echo(fit_terminal("\n\n".join(blocks), sys.stdout))
    offers = prices_view.as_json(found.prices, store.today())["prices"]
    if found.estimate.costs and (warning := prices_view.stale_warning(offers)):
        typer.echo(warning, err=True)
    if found.estimate.is_refused:
        raise typer.Exit(ExitCode.FINDINGS)


def _name_input(configs: list[str] | None, command: str | None) -> str:
    """The config to read; "" for a command. Raises UserError unless exactly one of the two is given."""
    if bool(configs) == (command is not None):
        raise UserError(
            what="both a config and a command are given" if configs else "a config or a command is missing",
            where="prime-train estimate",
            why="the training is described by one of them",
            fix="prime-train estimate CONFIG, or prime-train estimate --from-command 'torchrun ... train.py ...'",
        )
    return join_configs(configs) if configs else ""


class _PricedEstimate(NamedTuple):
    """The estimate of a run on its GPUs, and the prices of such GPUs."""

    run: RunSpec
    hardware: Hardware
    estimate: Estimate
    prices: tuple[Price, ...]


def _estimate(options: EstimateOptions) -> _PricedEstimate:
    """The estimate of a config. Raises UserError if an input is missing."""
    reading = inputs.parse_config(options)
    run = inputs.check_run(reading)
    shape = inputs.find_shape(run, reading, options)
    hardware = inputs.find_gpus(options)
    draft = inputs.draft_of(reading, hardware.gpus)
    run = run if draft is None else draft.run
    prices = inputs.read_prices(options)
    calibration = inputs.calibrate(options, run, hardware, shape)
    run, assumed = inputs.with_steps(options, run)
    found = estimate_run(run, hardware, shape, calibration, prices)
    case = Case(run, hardware, shape, found.memory, calibration)
    found = found if draft is None else explain(found, draft, run)
    found = found._replace(assumptions=(*found.assumptions, *filter(None, (assumed,))))
    advised = found._replace(advice=advise(case, keys_of(reading, draft)))
    return _PricedEstimate(run, hardware, advised, tuple(price for price in prices if price.gpu == hardware.id))


def _scale(found: _PricedEstimate) -> tuple[ScaledLayout, ...]:
    """The training over 1 to all GPUs in each way. Raises UserError if nothing is trained."""
    hardware = found.hardware
    if not found.estimate.memory.gpus.train:
        raise UserError(
            what="nothing is trained",
            where="--scaling",
            why="--scaling spreads a training over GPUs",
            fix="leave --scaling out",
        )
    setup = setup_of(found.run, hardware, found.estimate.shape)
    speed = setup_speed(found.run, hardware)
    return scale(setup, hardware, lambda other: training_memory(other, hardware), speed)
