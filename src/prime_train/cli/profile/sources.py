"""Collects the spans that `prime-train profile` analyses: from a short run, a script, a file, or prime-rl's metrics."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prime_train.config.command_start import read_command
from prime_train.core import outside
from prime_train.core import spans as span_files
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import parse_json
from prime_train.core.spans import Span, read_spans
from prime_train.core.units import GIB
from prime_train.facts.host import count_usable_cores, read_throttled_s
from prime_train.profile.diagnosis import Setup
from prime_train.profile.measurement import Measurement
from prime_train.profile.metric_rows import BUNDLED, idle_orchestrator, spans_of_rows
from prime_train.profile.report import Comparison
from prime_train.profile_script import STEPS_ENV
from prime_train.spec import RunSpec
from prime_train.spec.answers import program_name, write_folder, write_root
from prime_train.spec.command import CommandSpec

if TYPE_CHECKING:
    from prime_train.cli.estimate.inputs import EstimateOptions
    from prime_train.config.parsed_config import Reading
    from prime_train.estimate.estimate import Estimate

SPANS = "spans.jsonl"
_MOST_SPANS = 2_000_000
_MOST_ROWS = 200_000
_FIRST_ROWS = 10  # by which the program that wrote metrics.jsonl is known

Compare = Callable[[Measurement], tuple[Comparison, ...]]


class ProfileOptions(NamedTuple):
    """The options of the command line."""

    config: str
    steps: int
    warm_up: int
    overrides: tuple[str, ...] = ()
    output: Path | None = None
    trace: Path | None = None
    gpus: str | None = None


class Collected(NamedTuple):
    """The spans of one run, and what is known of it. `compare` compares its measurement with the estimate."""

    title: str
    spans: list[Span]
    setup: Setup
    imitation_steps: int = 0  # before the warm-up
    notes: tuple[str, ...] = ()
    compare: Compare = lambda _: ()


def read_span_file(path: Path) -> list[Span]:
    """The spans of a file, in the order in which they were written. Raises UserError."""
    try:
        return list(islice(read_spans(path), _MOST_SPANS))
    except OSError as error:
        raise _unreadable(path, error) from None


def read_file(path: Path) -> Collected:
    """A file of spans, a metrics.jsonl of prime-rl, or a folder with one of them."""
    if path.is_dir():
        path = next((path / name for name in (SPANS, "metrics.jsonl") if (path / name).is_file()), path / SPANS)
    spans = read_span_file(path)
    if spans:
        return Collected(path.name, spans, Setup(cores=count_usable_cores()))
    if any(BUNDLED.computing in row for row in islice(_rows(path), _FIRST_ROWS)):
        return _from_own_metrics(path)
    return _from_metrics(path, str(path))


def _from_own_metrics(path: Path) -> Collected:
    """The steps of a run of the bundled trainer, which has spans only while it is profiled."""
    note = (
        "the run has written how long each part of a step took, and not when: the order of the parts is assumed, "
        "forward and backward are not divided; prime-train profile CONFIG measures them"
    )
    rows = list(islice(_rows(path), _MOST_ROWS))
    return Collected(str(path.parent), list(spans_of_rows(rows, BUNDLED)), Setup(), notes=(note,))


# --- prime-rl --------------------------------------------------------------------------------------


def read_prime_rl(run: RunSpec, options: ProfileOptions) -> Collected:
    """The metrics of the steps that prime-rl has done so far. Raises UserError if there are none."""
    metrics = Path(write_root(run)).expanduser() / write_folder(run) / "metrics.jsonl"
    if program_name(run) != "prime_rl" or not metrics.is_file():
        raise UserError(
            what=f"there are no metrics of it: {metrics}" if program_name(run) == "prime_rl" else "it trains nothing",
            where=options.config,
            why="a run of prime-rl is profiled by the metrics of its steps, which its own trainer writes",
            fix=f"prime-train run {options.config} --set max_steps={options.warm_up + options.steps}, then this again",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    found = _from_metrics(metrics, options.config)
    if options.gpus is None:
        return found
    return found._replace(compare=lambda measured: _compare_run(run, options, measured))


def _from_metrics(path: Path, title: str) -> Collected:
    rows = list(islice(_rows(path), _MOST_ROWS))
    notes = [
        "prime-rl measures how long each part took, so the order of the parts in the timeline is assumed, and a wait "
        "for rollouts is not divided into its decode, tools and environment"
    ]
    idle = idle_orchestrator(rows, 0)
    if idle is not None:
        notes.append(f"the orchestrator waited {idle:.0%} of its time for the trainer")
    return Collected(title, list(spans_of_rows(rows)), Setup(), notes=tuple(notes))


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        for line in outside.read_lines(path):
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row
    except OSError as error:
        raise _unreadable(path, error) from None


# --- a command -------------------------------------------------------------------------------------


def refuse_trainer(run: RunSpec, command: CommandSpec, shown: str) -> UserError:
    """The refusal of a run of kind command, with the way to spans of its own.

    Its few steps cannot run in a folder of their own: prime-train does not know everything that a trainer writes.
    """
    spans = shlex.quote(str(Path(SPANS).absolute()))
    script = read_command(command.argv, Path(command.cwd).expanduser()).script or "its script"
    return UserError(
        what="a few steps of a command cannot be trained apart from its run",
        where=f"{shown}: run.kind = {run.run.kind!r}",
        why="the trainer writes where it likes, so the steps would land among the checkpoints of the run",
        fix=f"put the spans of prime_train.profile_script into {script} (docs/profile.md); "
        f"{span_files.ENV}={spans} prime-train run {shlex.quote(shown)}; prime-train profile {spans}",
    )


# --- a script --------------------------------------------------------------------------------------


def run_script(path: Path, options: ProfileOptions) -> Collected:
    """Run a script until it has made its steps. Its output goes to standard error. Raises UserError."""
    if not path.is_file():
        raise _unreadable(path, FileNotFoundError(2, "No such file or directory"))
    with tempfile.TemporaryDirectory(prefix="prime-train-profile-") as folder:
        target = (options.output or Path(folder)).resolve()
        target.mkdir(parents=True, exist_ok=True)
        spans_path = target / SPANS
        spans_path.unlink(missing_ok=True)
        variables = {span_files.ENV: str(spans_path), STEPS_ENV: str(options.warm_up + options.steps)}
        throttled_s = read_throttled_s()
        done = subprocess.run([sys.executable, str(path)], env=os.environ | variables, stdout=2, check=False)
        if not spans_path.is_file():
            ended = f"it ended with exit code {done.returncode}" if done.returncode else "it wrote no spans"
            raise UserError(
                what=ended,
                where=str(path),
                why="the time of its parts comes from its own spans",
                fix="from prime_train.profile_script import span, step; docs/profile.md has an example",
                exit_code=ExitCode.FINDINGS,
            )
        return Collected(
            path.name, read_span_file(spans_path), add_host(Setup(cores=count_usable_cores()), throttled_s)
        )


def add_host(setup: Setup, throttled_before_s: float) -> Setup:
    """The setup of a run that has ended on this machine just now, with what its processes met there."""
    throttled_s = max(0.0, read_throttled_s() - throttled_before_s)
    return setup._replace(load=os.getloadavg()[0], machine_cores=os.cpu_count(), throttled_s=throttled_s)


# --- the estimate ----------------------------------------------------------------------------------


def compare_with_estimate(run: RunSpec, options: ProfileOptions) -> Compare:
    """Compares with the estimate for --gpus, else for the GPUs of this machine. Without a GPU there is none."""
    if options.gpus is None and not count_gpus():
        return lambda _: ()
    return lambda measured: _compare_run(run, options, measured)


def compare_with_config(config: str, gpus: str | None) -> Compare:
    """Compares with the estimate for a config, also one of another trainer. Raises UserError if there is none."""
    from prime_train.cli.estimate import inputs

    given = inputs.EstimateOptions(config, gpus, offline=True)
    reading = inputs.parse_config(given)
    found = _estimate(inputs.check_run(reading), reading, given)
    return lambda measured: _compare(found, measured)


def _this_machine() -> Setup:

    return Setup(cores=count_usable_cores())


def count_gpus() -> int:
    from prime_train.facts.facts import NotKnown
    from prime_train.facts.host import gpus

    found = gpus()
    return 0 if isinstance(found, NotKnown) else len(found.devices)


def _compare_run(run: RunSpec, options: ProfileOptions, measured: Measurement) -> tuple[Comparison, ...]:
    """Compares with the estimate for the run itself. Raises UserError if the GPUs are unknown."""
    from prime_train.cli.estimate import inputs

    given = inputs.EstimateOptions(options.config, options.gpus, offline=True)
    return _compare(_estimate(run, inputs.parse_config(given), given), measured)


def _estimate(run: RunSpec, reading: Reading, given: EstimateOptions) -> Estimate:
    from prime_train.cli.estimate import inputs
    from prime_train.estimate.estimate import estimate

    return estimate(run, inputs.find_gpus(given), inputs.find_shape(run, reading, given))


def _compare(found: Estimate, measured: Measurement) -> tuple[Comparison, ...]:
    """Step time and the trainer's memory, measured and estimated."""
    rows = []
    if found.time is not None:
        rows.append(Comparison("step", "s", statistics.median(measured.step_s), found.time.step_s.typical))
    trainer = next((role.memory for role in found.memory.roles if role.memory.role == "trainer"), None)
    peak_bytes = max((one.peak_bytes for one in measured.memory), default=0)
    if trainer is not None and peak_bytes:
        rows.append(Comparison("trainer's memory", "GiB", peak_bytes / GIB, trainer.reserved.typical / GIB))
    if found.time is not None and found.time.rollouts is not None and measured.rollouts:
        rollouts_s = measured.critical_s("decode", "prefill", "queue", "rollouts") / measured.steps
        rows.append(Comparison("rollouts", "s", rollouts_s, found.time.rollouts.seconds.typical))
    return tuple(row for row in rows if row.estimated > 0)


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        what=f"it cannot be read: {error.strerror or error}",
        where=str(path),
        why="the spans or metrics of a run are read from it",
        fix="name a run.toml, a preset, a Python script, or a file of spans",
    )
