"""`prime-train status --wandb`: whether a run lives, judged from what W&B and its run directory show. Reads only."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import typer

from prime_train.away.run_dir_age import find_newest_change
from prime_train.away.verdict.remote_reading import RemoteReading
from prime_train.away.verdict.remote_report import as_json, as_lines
from prime_train.away.verdict.remote_verdict import Expectation, judge
from prime_train.away.verdict.wandb_reading import check_path, read_run
from prime_train.cli.terminal.render import labelled
from prime_train.core.errors import UserError

_FINAL = frozenset({"auth", "not_found", "not_installed"})  # problems that a second poll does not solve


class Options(NamedTuple):
    """The options of `status --wandb`."""

    path: str
    config: str | None = None
    gpus: str | None = None
    run_dir: str | None = None
    interval_s: float = 60.0
    as_json: bool = False


def status_wandb(options: Options) -> None:
    """Print the verdict. Ends with its exit code."""
    path = check_path(options.path)
    if options.run_dir is not None and not Path(options.run_dir).is_dir():
        why, fix = "the run directory is a second witness", "--run-dir with the run's directory or its mounted bucket"
        raise UserError(f"{options.run_dir} is no directory", "--run-dir", why, fix)
    expectation = _expect(options)
    readings = [_read(path, options)]
    if judge(readings, expectation).verdict not in ("alive", "finished") and readings[0].problem not in _FINAL:
        typer.echo(f"a second poll must agree: it comes in {options.interval_s:g} s", err=True)
        time.sleep(options.interval_s)
        readings.append(_read(path, options))
    found = judge(readings, expectation)
    document = as_json(path, found, readings)
    if options.as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        typer.echo(labelled(path, as_lines(document), sys.stdout))
    raise typer.Exit(found.exit_code)


def _read(path: str, options: Options) -> RemoteReading:
    reading = read_run(path, time.time(), os.environ)
    changed_s = None if options.run_dir is None else find_newest_change(Path(options.run_dir))
    return replace(reading, run_dir_s=changed_s)


def _expect(options: Options) -> Expectation:
    """The steps of --config, and the upper bound of the estimated time of one. Raises UserError for a wrong config."""
    if options.config is None:
        if options.gpus is not None:
            why, fix = "the time of a step is estimated for a run", "add --config CONFIG, or leave --gpus out"
            raise UserError("--gpus is given without --config", "--gpus", why, fix)
        return Expectation()
    from prime_train.cli.estimate import inputs  # lazy: only with --config
    from prime_train.estimate.estimate import estimate

    given = inputs.Options(options.config, gpus=options.gpus)
    reading = inputs.parse_config(given)
    run = inputs.check_run(reading)
    if options.gpus is None:
        return Expectation(max_steps=run.run.max_steps)
    found = estimate(run, inputs.find_gpus(given), inputs.find_shape(run, reading, given))
    return Expectation(max_steps=run.run.max_steps, step_s=found.time.step_s.high if found.time is not None else None)
