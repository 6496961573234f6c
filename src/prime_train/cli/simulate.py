"""`prime-train simulate`: lives of a run on spot machines, by the interval of its checkpoints. Starts nothing."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli import simulate_inputs as inputs
from prime_train.cli.options import AsJson, Config, Generation, ModelConfig, NoColor, Offline, Prices
from prime_train.cli.render import fit_terminal, json_text, paint, table, terminal_columns
from prime_train.cli.simulate_inputs import Options, Times
from prime_train.core.errors import UserError
from prime_train.core.installation import install_command
from prime_train.core.units import format_seconds
from prime_train.estimate.cost.run_cost import shipped_rates
from prime_train.estimate.spot.advice import SpotSaves, advise_saves
from prime_train.estimate.spot.interruptions import Process
from prime_train.estimate.spot.interval import expect
from prime_train.estimate.spot.simulate import SpotRun, intervals_to_try, simulate, tally
from prime_train.spec import ENDLESS_STEPS
from prime_train.views import spot as view

app = typer.Typer()

_PLOTS = (".svg", ".png")
_DAY_S = 86_400.0


@app.callback()
def _simulate() -> None:
    """What interruptions cost a run, by its checkpoint interval."""


@app.command("spot", short_help="Lives of a run on spot machines.")
def spot(
    config: Config,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="8xh100-80gb", help="The GPUs. Default: those of this machine."),
    ] = None,
    measured: Annotated[
        str | None, typer.Option("--measured", metavar="RUN", help="A run whose step and save times are used.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Replaces run.max_steps.")] = None,
    step_s: Annotated[float | None, typer.Option("--step-s", min=1e-6, help="Seconds of a step.")] = None,
    save_s: Annotated[
        float | None, typer.Option("--save-s", min=0, help="Seconds that a save stops the training.")
    ] = None,
    write_s: Annotated[
        float | None, typer.Option("--write-s", min=0, help="Seconds from the start of a save until it is safe.")
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option("--usd-per-hour", min=0, help="The price of all GPUs for an hour.")
    ] = None,
    interruptions_per_day: Annotated[
        float | None, typer.Option("--interruptions-per-day", min=1e-6, help="The mean rate of interruptions.")
    ] = None,
    shape: Annotated[
        float, typer.Option("--shape", min=0.2, max=10, help="Shape of the Weibull distribution of a machine's life.")
    ] = 1.0,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="A recording, as in skypilot-org/spot-traces.")
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait-s", min=0, help="Mean wait for the next machine, not billed.")] = 0.0,
    restart_s: Annotated[
        float | None, typer.Option("--restart-s", min=0, help="Billed seconds from a machine to its first step.")
    ] = None,
    days: Annotated[float, typer.Option("--days", min=0.01, max=3650, help="The longest life.")] = 30.0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=100_000, help="Lives per interval.")] = 1000,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write a plot, .svg or .png (train extra).")
    ] = None,
    model_config: ModelConfig = None,
    prices: Prices = None,
    prime_rl: Generation = None,
    offline: Offline = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Lives of a run on spot machines.

    Time, cost and lost work by the interval between checkpoints, under the policy that ends a run after ten lost
    machines without a newer checkpoint, and the interval that loses least. The same seeds give the same result.

    Examples:

      prime-train simulate spot rl.toml --gpus 8xh100-80gb --interruptions-per-day 4

      prime-train simulate spot run.toml --measured first --trace us-west-2b_v100_1.json --plot spot.svg
    """
    if plot is not None and plot.suffix not in _PLOTS:
        why = "the suffix chooses the format"
        raise UserError(f"{plot.name} is neither .svg nor .png", "--plot", why, "--plot spot.svg")
    found = inputs.read_times(
        Options(
            config,
            gpus,
            model_config,
            prices,
            prime_rl,
            offline,
            measured,
            step_s,
            save_s,
            write_s,
            steps,
            usd_per_hour,
        )
    )
    per_day = interruptions_per_day or found.run.prime_train.interruptions_per_day
    process, described = inputs.read_process(trace, per_day, shape, wait_s)
    restart = shipped_rates().restart_s.typical if restart_s is None else restart_s
    advice = advise_saves(
        found.run, found.step_s, 3600 / process.between_s, restart, found.saves, measured=found.measured
    )
    base = SpotRun(
        found.run.run.max_steps * found.step_s,
        advice.advice.interval_s,
        found.saves,
        restart,
        found.usd_per_hour,
        days * _DAY_S,
    )
    if found.run.run.max_steps >= ENDLESS_STEPS:
        raise _without_end(config)
    rows = _simulate_all(found, base, advice, process, seeds)
    basis = f"{found.basis}; a restart takes {format_seconds(restart)}"
    shown = view.Shown(base, rows, advice, described, basis)
    if as_json:
        typer.echo(json_text(view.as_json(shown)))
    else:
        typer.echo(paint(f"{config} on spot machines", "bold", sys.stdout))
        typer.echo(table(view.rows(shown), view.HEADER, right=view.RIGHT, columns=terminal_columns(sys.stdout)))
        typer.echo(fit_terminal("\n".join(view.notes(shown)), sys.stdout))
    if plot is not None:
        _draw(shown, plot)


def _simulate_all(found: Times, base: SpotRun, advice: SpotSaves, process: Process, seeds: int) -> tuple[view.Row, ...]:
    """A row for each interval around the recommended one, and for that of the config."""
    most = found.run.run.max_steps
    tried = {max(1, min(most, round(one / found.step_s))) for one in intervals_to_try(advice.advice.interval_s)}
    own = found.run.checkpoint.interval_steps
    rows = []
    for interval_steps in sorted(tried | ({min(own, most)} if own is not None else set())):
        run = base._replace(interval_s=interval_steps * found.step_s)
        lives = [simulate(run, process, seed) for seed in range(seeds)]
        expected = expect(run.work_s, run.interval_s, run.saves, 3600 / process.between_s, run.restart_s)
        rows.append(view.Row(interval_steps, run.interval_s, tally(run, lives), expected))
    return tuple(rows)


def _draw(shown: view.Shown, path: Path) -> None:
    try:
        view.draw(shown, path.expanduser())
    except ImportError:
        typer.echo(f"no plot, because matplotlib is missing: {install_command('train')}", err=True)
    except OSError as error:
        why = "the plot is a file of its own"
        raise UserError(f"it cannot be written: {error.strerror or error}", str(path), why, "--plot PATH") from None
    else:
        typer.echo(f"plot: {path}", err=True)


def _without_end(config: str) -> UserError:
    return UserError(
        what="the run has no last step",
        where=config,
        why="time and cost are those of a whole run",
        fix="--steps 10000, or set max_steps",
    )
