"""Reads the whole history of a run from its events and metrics.jsonl, and summarizes it. Writes nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from prime_train import events
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import RECORD_BYTES, OutsideError, open_regular, parse_json
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_seconds
from prime_train.events import Record
from prime_train.events.bounds import MOST_STEPS, MOST_VALUE
from prime_train.programs import recorded
from prime_train.spec import RunSpec
from prime_train.supervise.core.journal import read_state
from prime_train.supervise.core.state import AttemptState, State
from prime_train.supervise.launch.run_directory import find_newest_complete, read_run_spec
from prime_train.supervise.processes.lock import find_holder
from prime_train.views.run import measures

PHASES = ("rollouts_s", "data_s", "forward_backward_s", "optimizer_s", "weights_s", "checkpoint_s")
ROLLOUTS = ("reward", "answer_tokens", "truncated", "failed", "too_old", "rollouts", "zero_groups", "groups", "entropy",
            "clip_ratio", "reference_kl", "mismatch_kl", "behind_steps")  # fmt: skip
_COLUMNS = ("step", "loss", "tokens_per_s", "step_s", *PHASES, "peak_memory_gib", "mfu", *ROLLOUTS)

# The report shows them from the state, if at all.
_BRIEF = (events.Progress, events.Phase, events.CheckpointStarted, events.Sampled)
_SHOWN = events.WatchEvent | events.CheckpointDeleted | events.ClipsBroken | events.StepSkipped | events.EventsDamaged
_WHOLE_BYTES = 32 << 20  # a longer metrics.jsonl is shown by this many of its lines:
SAMPLED_LINES = 20_000
_LONGEST_BYTES = 64 << 10  # of a line

Metrics = dict[str, list[float]]  # column of metrics.jsonl -> one value per step; nan if a line has none


class RestartGap(NamedTuple):
    """A failed attempt and the one that followed it. `waited_s`: from the failure to the next start."""

    failed: AttemptState
    followed: AttemptState
    waited_s: float | None

    @property
    def steps_redone(self) -> int:
        return max(0, self.failed.last_step - self.followed.resume_step)


class RunHistory(NamedTuple):
    name: str
    path: Path
    started_in: str  # working directory of the latest attempt, the base of relative config paths; "" = not known
    asked: RunSpec | None  # as the run began; None if resolved.json cannot be read
    state: State
    evaluations: tuple[events.Evaluated, ...]  # by step; without those of steps that a restart repeated
    task_evaluations: tuple[events.TasksEvaluated, ...]  # by step and environment; likewise
    measured: tuple[events.Measured, ...]  # on sets of text and by benchmarks; likewise
    failed_rollouts: tuple[events.RolloutsFailed, ...]  # in the order of their events
    saves: tuple[events.CheckpointSaved, ...]
    metrics: Metrics
    began_s: float | None
    ended_s: float | None
    worked_s: float  # sum over the lives of the supervisors, without the pauses between them
    records: tuple[Record, ...] = ()  # alarms and what the supervisor did about them
    newest_complete: int | None = None  # the step of the newest complete checkpoint on the disk
    is_supervised: bool = True

    @property
    def word(self) -> str:
        """The state of the run, in the word of `status`: "died" if it was not closed and no supervisor is alive."""
        return self.state.state if self.state.closed or self.is_supervised else "died"

    @property
    def restarts(self) -> tuple[RestartGap, ...]:
        """Failed attempts that another one followed."""
        pairs = zip(self.state.attempts, self.state.attempts[1:], strict=False)
        return tuple(
            RestartGap(failed, after, _waited_s(failed, after)) for failed, after in pairs if failed.outcome == "failed"
        )

    @property
    def vocab_loss(self) -> float | None:
        """Loss of a model that knows nothing but the size of the vocabulary: ln(V), nats per token."""
        started = self.state.started
        return math.log(started.vocab_size) if started is not None and started.vocab_size > 1 else None

    @property
    def guess_name(self) -> str:
        """The logarithm that `vocab_loss` is, as text."""
        return "ln(classes)" if self.state.unit == "clips" else "ln(vocabulary)"


def gather(run_dir: RunDir) -> RunHistory:
    """Everything the report shows, up to now."""
    records = events.Follower(run_dir.events, brief=_BRIEF).poll()
    state = read_state(run_dir).state
    saved = {record.event.step: record.event for record in records if isinstance(record.event, events.CheckpointSaved)}
    tasks = measures.keep(records, events.TasksEvaluated, lambda one: one.environment)
    program, spec = recorded(run_dir, strict=False)
    newest = find_newest_complete(program.checkpoints(spec, run_dir))
    return RunHistory(
        name=state.run or run_dir.path.name,
        path=run_dir.path,
        started_in=_read_cwd(run_dir, state.attempt_number),
        asked=_read_asked(run_dir),
        state=state,
        evaluations=tuple(measures.keep(records, events.Evaluated, lambda _: "")),
        task_evaluations=tuple(sorted(tasks, key=lambda one: (one.step, one.environment))),
        measured=tuple(measures.keep(records, events.Measured, lambda one: (one.name, one.metric))),
        failed_rollouts=tuple(record.event for record in records if isinstance(record.event, events.RolloutsFailed)),
        saves=tuple(saved[step] for step in sorted(saved)),
        metrics=read_metrics(run_dir.metrics),
        began_s=records[0].time_s if records else None,
        ended_s=records[-1].time_s if records else None,
        worked_s=_worked_s(records),
        records=tuple(record for record in records if isinstance(record.event, _SHOWN)),
        newest_complete=None if newest is None else newest.step,
        is_supervised=find_holder(run_dir) is not None,
    )


def read_metrics(path: Path) -> Metrics:
    """The columns of metrics.jsonl that the report shows. If a step occurs twice, the later line counts."""
    by_step: dict[int, list[float]] = {}
    with suppress(FileNotFoundError, IsADirectoryError, OutsideError), open_regular(path, path.parent) as file:
        for line in _sample_lines(file):
            row = _row(line)
            if row is not None:
                by_step[int(row[0])] = row
    rows = [by_step[step] for step in sorted(by_step)]
    return {column: [row[index] for row in rows] for index, column in enumerate(_COLUMNS)}


def _sample_lines(file: BinaryIO) -> Iterator[bytes]:
    """Every line; of a long file lines at equal distances, the first and the last included."""
    size = os.fstat(file.fileno()).st_size
    if size <= _WHOLE_BYTES:
        yield from iter(lambda: file.readline(_LONGEST_BYTES), b"")
        return
    yield file.readline(_LONGEST_BYTES)
    for number in range(1, SAMPLED_LINES):
        file.seek(size * number // SAMPLED_LINES)
        file.readline(_LONGEST_BYTES)  # the rest of a line
        yield file.readline(_LONGEST_BYTES)
    file.seek(max(0, size - _LONGEST_BYTES))
    yield from file.read(_LONGEST_BYTES).splitlines()[-1:]


def _row(line: bytes) -> list[float] | None:
    """The values of one line; None for an incomplete one."""
    try:
        raw = parse_json(line)
        values = [raw.get(column) for column in _COLUMNS]
        if not isinstance(values[0], int | float) or not 0 <= values[0] <= MOST_STEPS:
            return None
        return [math.nan if value is None else _drawable(float(value)) for value in values]
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _drawable(value: float) -> float:
    """The value; no number where a plot of it would overflow."""
    return math.nan if math.isfinite(value) and abs(value) > MOST_VALUE else value


def _read_asked(run_dir: RunDir) -> RunSpec | None:
    try:
        return read_run_spec(run_dir)
    except UserError:
        return None


def _read_cwd(run_dir: RunDir, attempt: int) -> str:
    """The working directory of an attempt; "" if it is not known. All its roles start in the same one."""
    for path in sorted(run_dir.attempt(attempt).glob(run_dir.launch(attempt, "*").name))[:1]:
        with suppress(OSError, ValueError):
            found = outside.read_json(path, RECORD_BYTES, within=path.parent)
            return str(found.get("cwd", "")) if isinstance(found, dict) else ""
    return ""


def _worked_s(records: Iterable[Record]) -> float:
    total_s = 0.0
    began_s: float | None = None
    last_s = 0.0
    for record in records:
        if isinstance(record.event, events.RunOpened):
            total_s += last_s - began_s if began_s is not None else 0.0
            began_s = record.time_s
        last_s = record.time_s
    return total_s + (last_s - began_s if began_s is not None else 0.0)


def _waited_s(failed: AttemptState, followed: AttemptState) -> float | None:
    """None for an attempt that a later supervisor found dead, because the time of its end is not known."""
    if failed.returncode is None or failed.ended_s is None or followed.started_s is None:
        return None
    return max(0.0, followed.started_s - failed.ended_s)


_SAMPLE_LINES = 8


def summarize(run_dir: RunDir, again: str, longer: str) -> tuple[str, list[tuple[str, str]]]:
    """A title, and label and text of each line.

    `again`: the command that continues the run; `longer`: the same command for twice as many steps.
    """
    run = gather(run_dir)
    state = run.state
    title = f"{run.name} {state.state}: {state.progress_text} in {format_seconds(run.worked_s)}"
    lines: list[tuple[str, str]] = []
    failed = state.attempt
    if state.state == "failed" and failed is not None:
        lines.append(("what", state.reason or failed.what))
        lines += [("why", failed.why), ("fix", failed.fix), ("see", failed.where)]
    lines += [(f"restart {number}", _restart(restart)) for number, restart in enumerate(run.restarts, start=1)]
    if run.evaluations:
        lines.append(("held-out loss", _held_out(run)))
    lines += [("held-out tasks", words) for words in describe_scores(run)]
    lines += [("evaluation", words) for words in measures.describe(measures.as_json(run.measured))]
    if state.newest_complete:
        program, spec = recorded(run_dir, strict=False)
        newest = find_newest_complete(program.checkpoints(spec, run_dir))
        where = newest.path if newest is not None else run_dir.checkpoint(state.newest_complete)
        lines.append(("checkpoint", run_dir.relative(where)))
    if run_dir.final.is_dir():
        lines.append(("final model", run_dir.relative(run_dir.final)))
    if state.samples:
        lines.append(("sample", _sample(state.samples[0].prompt + state.samples[0].text)))
    for label, path in (("plot", run_dir.plots / "loss.png"), ("report", run_dir.report)):
        if path.exists():
            lines.append((label, run_dir.relative(path)))
    lines.append(("train longer", longer) if state.state == "finished" else ("continue", again))
    return title, [(label, words) for label, words in lines if words]


def _restart(restart: RestartGap) -> str:
    waited = "" if restart.waited_s is None else f" {format_seconds(restart.waited_s)} later"
    origin = restart.followed.describe_origin()
    died = f"step {restart.failed.last_step:,}"
    what = restart.failed.what if died in restart.failed.what else f"{restart.failed.what} at {died}"
    return f"{what}; resumed{waited} from {origin}"


def _held_out(run: RunHistory) -> str:
    first, last = run.evaluations[0].loss, run.evaluations[-1].loss
    text = f"{first:.4f} -> {last:.4f}"
    if run.vocab_loss is not None:
        text += f", {1 - last / run.vocab_loss:.0%} below {run.guess_name} = {run.vocab_loss:.4f}"
    return text


def describe_scores(run: RunHistory) -> list[str]:
    """One line per environment: the first and the last mean reward on its held-out tasks."""
    by_environment: dict[str, list[events.TasksEvaluated]] = {}
    for evaluated in run.task_evaluations:
        by_environment.setdefault(evaluated.environment, []).append(evaluated)
    return [
        f"{name}: mean reward {of[0].reward:.3f} at step {of[0].step:,} -> {of[-1].reward:.3f} at step {of[-1].step:,}"
        for name, of in by_environment.items()
    ]


def _sample(text: str) -> str:
    lines = text.rstrip().split("\n")
    return "\n".join(lines[:_SAMPLE_LINES] + (["..."] if len(lines) > _SAMPLE_LINES else []))
