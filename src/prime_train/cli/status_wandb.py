"""`prime-train status --wandb`: whether a run lives, judged from what W&B and its run directory show. Reads only."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import typer

from prime_train.away.verdict.remote_reading import RemoteReading
from prime_train.away.verdict.remote_verdict import Expectation, RemoteVerdict, judge
from prime_train.away.verdict.wandb_reading import check_path, read_run
from prime_train.cli.terminal.render import labelled
from prime_train.core.errors import UserError
from prime_train.core.units import format_seconds


def as_json(path: str, verdict: RemoteVerdict, readings: Sequence[RemoteReading]) -> dict[str, Any]:
    """The document of `status --wandb --json`. Times are in UTC; `exit_code` is that of the command."""
    return {
        "version": 1,
        "run": path,
        "verdict": verdict.verdict,
        "why": verdict.why,
        "fix": verdict.fix or None,
        "resumable": verdict.resumable,
        "complete": verdict.is_complete,
        "step": verdict.step,
        "max_steps": verdict.max_steps,
        "exit_code": int(verdict.exit_code),
        "polls": [_reading_as_json(reading) for reading in readings],
    }


def _reading_as_json(reading: RemoteReading) -> dict[str, Any]:
    return {
        "observed": _utc(reading.observed_s),
        "problem": reading.problem or None,
        "detail": reading.detail or None,
        "state": reading.state or None,
        "heartbeat": _utc(reading.heartbeat_s),
        "heartbeat_age_s": _age_s(reading, reading.heartbeat_s),
        "step": reading.step,
        "last_step": _utc(reading.last_step_s),
        "system_metrics": _utc(reading.system_metrics_s),
        "gpu_busy": None if reading.gpu_busy is None else round(reading.gpu_busy, 3),
        "step_s": None if reading.step_s is None else round(reading.step_s, 3),
        "run_directory": _utc(reading.run_dir_s),
        "run_directory_age_s": _age_s(reading, reading.run_dir_s),
        "job": reading.job or None,
        "run_exit_code": reading.exit_code,
    }


def as_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line of `status --wandb`, from its document; unknown values are left out."""
    newest = next((poll for poll in reversed(document["polls"]) if not poll["problem"]), None)
    lines = [("verdict", document["verdict"]), ("why", document["why"])]
    if document["step"] is not None:
        last = "" if document["max_steps"] is None else f" of {document['max_steps']:,}"
        lines.append(("step", f"{document['step']:,}{last}"))
    if newest is not None:
        ages = (("heartbeat", newest["heartbeat_age_s"]), ("run directory", newest["run_directory_age_s"]))
        lines.extend((name, _format_age(age_s)) for name, age_s in ages if age_s is not None)
        if newest["step_s"] is not None:
            lines.append(("time of a step", f"{format_seconds(newest['step_s'])}, median"))
        if newest["gpu_busy"] is not None:
            lines.append(("GPUs", f"{newest['gpu_busy']:.0%} busy"))
    lines.append(("resumable", "yes" if document["resumable"] else "no"))
    return [*lines, ("fix", document["fix"])] if document["fix"] else lines


def _age_s(reading: RemoteReading, at_s: float | None) -> float | None:
    """Seconds before the reading; negative in the future."""
    return None if at_s is None else round(reading.observed_s - at_s, 1)


def _format_age(age_s: float) -> str:
    return f"{format_seconds(age_s)} ago" if age_s >= 0 else f"{format_seconds(-age_s)} in the future"


def _utc(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_DEPTH = 3  # RUN/checkpoints/step_N/FILE
_ENTRIES = 20_000  # in a mounted bucket each entry may cost a request


def find_newest_change(folder: Path) -> float | None:
    """The newest modification time of a file below `folder`, in seconds since the epoch; None if there is no file.

    Symbolic links are not followed.
    """
    return max(islice(_times(str(folder), _DEPTH), _ENTRIES), default=None)


def _times(folder: str, depth: int) -> Iterator[float]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it was deleted, or may not be read
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from _times(entry.path, depth - 1)
            elif entry.is_file(follow_symlinks=False):
                yield entry.stat(follow_symlinks=False).st_mtime
        except OSError:
            continue


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

    given = inputs.EstimateOptions(options.config, gpus=options.gpus)
    reading = inputs.parse_config(given)
    run = inputs.check_run(reading)
    if options.gpus is None:
        return Expectation(max_steps=run.run.max_steps)
    found = estimate(run, inputs.find_gpus(given), inputs.find_shape(run, reading, given))
    return Expectation(max_steps=run.run.max_steps, step_s=found.time.step_s.high if found.time is not None else None)
