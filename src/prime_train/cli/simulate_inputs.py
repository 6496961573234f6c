"""The inputs of `prime-train simulate spot`: the run's times, its price, and the interruptions. Prints nothing."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from prime_train.cli import estimate_inputs as inputs
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.units import format_seconds
from prime_train.estimate.cost.run_cost import price_interval, shipped_rates
from prime_train.estimate.estimate import estimate
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.spot.advice import assume_saves
from prime_train.estimate.spot.interruptions import Generated, Process, Recorded, parse_recording
from prime_train.estimate.spot.interval import Saves
from prime_train.facts.previous_run import read_save_times, read_step_times
from prime_train.prices.price import Price
from prime_train.spec import RunSpec
from prime_train.views.runs import find

_MOST_BYTES = 16 * 2**20


class Options(NamedTuple):
    """The options of the command line."""

    config: str
    gpus: str | None = None
    model_config: str | None = None
    prices: str | None = None
    prime_rl: str | None = None
    offline: bool = False
    measured: str | None = None
    step_s: float | None = None
    save_s: float | None = None
    write_s: float | None = None
    steps: int | None = None
    usd_per_hour: float | None = None


class Times(NamedTuple):
    """The run, the time of its steps and saves, its price per hour (0 if not known), and where these come from."""

    run: RunSpec
    step_s: float
    saves: Saves
    usd_per_hour: float
    measured: bool
    basis: str


def read_times(options: Options) -> Times:
    """Each time from the options, else measured in an earlier run, else estimated. Raises UserError."""
    asked = inputs.Options(
        options.config, options.gpus, options.model_config, None, options.prices, options.prime_rl, options.offline
    )
    reading = inputs.parse_config(asked)
    run = inputs.check_run(reading)
    if options.steps is not None:
        run = replace(run, run=replace(run.run, max_steps=options.steps))
    known = _measure(options)
    if known.step_s is None or known.saves is None or (known.usd_per_hour is None and options.gpus is not None):
        known = _estimate(run, inputs.find_shape(run, reading, asked), asked, known)
    if known.step_s is None or known.saves is None:
        raise UserError(
            what="nothing is trained",
            where=options.config,
            why="only a training loses work when its machine is taken away",
            fix="name the config of a training",
        )
    basis = (
        f"{run.run.max_steps:,} steps of {format_seconds(known.step_s)}; a save stops the training for "
        f"{format_seconds(known.saves.stall_s)} and is written after {format_seconds(known.saves.write_s)}"
    )
    sources = "; ".join((basis, *known.sources))
    return Times(run, known.step_s, known.saves, known.usd_per_hour or 0.0, known.measured, sources)


class _Known(NamedTuple):
    """What is known so far, and where from."""

    step_s: float | None
    saves: Saves | None
    usd_per_hour: float | None
    measured: bool = False
    sources: tuple[str, ...] = ()


def _measure(options: Options) -> _Known:
    """The options, completed from an earlier run."""
    given = _Known(options.step_s, _given_saves(options), options.usd_per_hour)
    if options.measured is None:
        return given
    run_dir = find(options.measured, Path.cwd())
    steps, saves = read_step_times(run_dir.metrics), read_save_times(run_dir.events)
    return _Known(
        given.step_s or (statistics.median(steps) if steps else None),
        given.saves or (Saves(*saves) if saves is not None else None),
        given.usd_per_hour,
        given.saves is None and saves is not None,
        (f"measured in {options.measured}",),
    )


def _estimate(run: RunSpec, shape: ModelShape, asked: inputs.Options, known: _Known) -> _Known:
    """What is missing, from the size of the model and from the GPUs."""
    saves = known.saves or assume_saves(run, shape.parameters)
    if known.step_s is not None and asked.gpus is None:
        return known._replace(saves=saves)
    hardware = inputs.find_gpus(asked)
    time = estimate(run, hardware, shape).time
    step_s = known.step_s or (time.step_s.typical if time is not None else None)
    usd_per_hour = known.usd_per_hour
    if usd_per_hour is None:
        usd_per_hour = _find_price(inputs.read_prices(asked), hardware.id, hardware.gpus)
    sources = (*known.sources, f"estimated on {hardware.gpus} x {hardware.id}")
    return known._replace(step_s=step_s, saves=saves, usd_per_hour=usd_per_hour, sources=sources)


def _given_saves(options: Options) -> Saves | None:
    if options.save_s is None:
        return None
    return Saves(options.save_s, max(options.save_s, options.write_s or 0.0))


def _find_price(prices: tuple[Price, ...], gpu: str, gpus: int) -> float | None:
    """The median spot price of all GPUs for an hour; None if there is none."""
    usd = [price.usd_per_gpu_hour for price in prices if price.gpu == gpu and price.spot]
    return gpus * price_interval(usd).typical if usd else None


def read_process(trace: Path | None, per_day: float | None, shape: float, wait_s: float) -> tuple[Process, str]:
    """The interruptions and their description. Raises UserError for a file that is no recording."""
    if trace is not None:
        recorded = _read_recording(trace)
        return recorded, f"recorded in {trace.name}, a machine lives {format_seconds(recorded.between_s)} on average"
    per_hour = per_day / 24 if per_day is not None else shipped_rates().spot.typical
    kind = "exponential" if shape == 1 else f"Weibull, shape {shape:g}"
    where = "" if per_day is not None else ", the rate of registry/interruptions.toml"
    return Generated(3600 / per_hour, shape, wait_s), f"{per_hour * 24:.3g} interruptions a day, {kind}{where}"


def _read_recording(path: Path) -> Recorded:
    try:
        content = outside.read_bytes(path.expanduser(), _MOST_BYTES)
    except OSError as error:
        why = "a recording is a file of github.com/skypilot-org/spot-traces"
        raise UserError(f"it cannot be read: {error.strerror or error}", str(path), why, "give its path") from None
    return parse_recording(content.decode("utf-8", errors="replace"), str(path))
