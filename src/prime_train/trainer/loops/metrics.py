"""Writes one line per optimizer step to metrics.jsonl, and a Progress event from time to time. Measures nothing."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prime_train.core import outside
from prime_train.core.outside import parse_json
from prime_train.core.rundir import open_private, write_all, write_atomic
from prime_train.events import AlarmRaised, Progress
from prime_train.trainer.attempt import Attempt

if TYPE_CHECKING:  # they import torch, and a stand-in for the loop writes metrics without it
    from prime_train.trainer.loops.spikes import StepResult
    from prime_train.trainer.loops.step import Training
    from prime_train.trainer.saves.checkpoint import TrainPosition

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # no link, no wait at a pipe
_PROGRESS_INTERVAL_S = 0.3
_LINES_KEPT = 64  # a leader is replaced within a few steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One line of metrics.jsonl. Seconds are those of rank 0; the other values are over all ranks."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int  # labelled tokens of this step
    tokens_seen: int  # since the run began
    tokens_per_s: float
    step_s: float  # sum of the phases below
    data_s: float
    forward_backward_s: float
    optimizer_s: float
    checkpoint_s: float  # the loop's wait for a save since the previous step
    peak_memory_gib: float  # of rank 0: allocated GPU memory, on a CPU resident memory
    mfu: float | None  # 0 to 1, by labelled tokens; None where the peak of the device is unknown
    skipped: bool = False  # the step did not change the weights; its loss or norm may be missing


@dataclass(frozen=True, slots=True)
class QuorumMetrics:
    """The columns of a step of replicas."""

    replicas: int  # that took part in it
    sequences: int  # of all of them


def step_metrics(
    training: Training,
    reached: TrainPosition,
    result: StepResult,
    lr: float,
    flops_per_token: float,
    waited_s: Mapping[str, float],
) -> StepMetrics:
    """The metrics of a step. `waited_s`: the seconds before it by phase; data and checkpoint have columns."""
    step_s = sum(waited_s.values()) + result.forward_backward_s + result.optimizer_s
    tokens_per_s = result.tokens / step_s
    peak_flops = training.device.peak_flops and training.device.peak_flops * training.world.step_ranks
    return StepMetrics(
        step=reached.step,
        loss=result.loss,
        lr=lr,
        grad_norm=result.grad_norm,
        tokens=result.tokens,
        tokens_seen=reached.tokens_seen,
        tokens_per_s=tokens_per_s,
        step_s=step_s,
        data_s=waited_s.get("data", 0.0),
        forward_backward_s=result.forward_backward_s,
        optimizer_s=result.optimizer_s,
        checkpoint_s=waited_s["checkpoint"],
        peak_memory_gib=training.device.peak_memory_gib(),
        skipped=result.skipped,
        mfu=None if peak_flops is None else tokens_per_s * flops_per_token / peak_flops,
    )


class Metrics:
    """Writes the metrics on rank 0. On other ranks its calls do nothing."""

    def __init__(self, attempt: Attempt, unit: str = "tokens") -> None:
        """`unit`: what the loss counts, which the progress shows."""
        self._attempt, self._unit = attempt, unit
        self._written_s = 0.0
        self._pending: Progress | None = None
        self._file: int | None = None
        # Of a replica that does not lead: the leader may be lost before it has written the line of a step.
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=_LINES_KEPT)
        if attempt.rank == 0 and attempt.replica is None:
            drop_after(attempt.run_dir.metrics, attempt.resume_step)
            self._file = _open_for_lines(attempt.run_dir.metrics)

    def add(self, line: StepMetrics, *more: Any, reward: float | None = None) -> None:
        """`more`: dataclasses whose fields are further columns; None has none. `reward` is for the progress."""
        values: dict[str, Any] = {}
        for part in (line, *more):
            values |= {} if part is None else _values(part)
        if self._attempt.replica is not None:
            self._follow_leader(values)
        if self._file is None:
            return
        self._file = self._reopen_lost(self._file, line.step)
        _write_line(self._file, values)
        if not math.isfinite(line.loss):
            return
        figures = (line.loss, line.tokens_per_s, line.tokens_seen, reward, self._unit)
        self._pending = Progress(self._attempt.number, line.step, *figures, grad_norm=line.grad_norm)
        if time.monotonic() - self._written_s >= _PROGRESS_INTERVAL_S:
            self.flush()

    def show_unwritten(self) -> list[dict[str, Any]]:
        """The lines that another replica was to write, for one that takes over from this one: JSON-able."""
        return [*self._unwritten]

    def take_unwritten(self, lines: list[dict[str, Any]]) -> None:
        """Keep what `show_unwritten` returned in the replica that this one got its state from.

        A leader that is lost before its line is written may come back and lead again.
        """
        self._unwritten = deque(lines, maxlen=self._unwritten.maxlen)

    def keep_lines(self, count: int) -> None:
        """Keep as many lines for a leader that may be lost, where the leader writes so many at once."""
        self._unwritten = deque(self._unwritten, maxlen=max(_LINES_KEPT, count))

    def _follow_leader(self, line: dict[str, Any]) -> None:
        """Open the file where this replica leads from this step on, and write what the leader before did not."""
        if not self._attempt.leads:
            self.close()
            self._pending = None
            self._unwritten.append(line)
        elif self._file is None:
            path = self._attempt.run_dir.metrics
            self._file = _open_for_lines(path)
            written_step = last_step(path)
            if written_step >= line["step"]:
                # A leader that was lost had written a step that the others repeat, and maybe with fewer rows.
                os.close(self._file)
                drop_after(path, line["step"] - 1)
                self._file = _open_for_lines(path)
            for earlier in self._unwritten:
                if written_step < earlier["step"] < line["step"]:
                    _write_line(self._file, earlier)
            self._unwritten.clear()

    def _reopen_lost(self, file: int, step: int) -> int:
        """The open file, or another one where metrics.jsonl was deleted or replaced, which an alarm says then."""
        path = self._attempt.run_dir.metrics
        with suppress(OSError):  # without a folder for it, the supervisor ends the run
            if _has_name(file, path):
                return file
            # A link or a pipe with its name is set aside: lines would go to another place.
            another = open_private(path, _APPEND)
            os.close(file)
            file = another
            self._attempt.emit(_alarm_lost(self._attempt.number, path, step))
        return file

    def flush(self) -> None:
        """Write the newest progress as an event if that was not done yet."""
        if self._pending is not None:
            self._attempt.emit(self._pending)
            self._pending, self._written_s = None, time.monotonic()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open_for_lines(path: Path) -> int:
    return os.open(path, _APPEND, 0o644)


def _write_line(file: int, values: dict[str, Any]) -> None:
    write_all(file, json.dumps(values, allow_nan=False).encode() + b"\n")


def _has_name(file: int, path: Path) -> bool:
    """Whether an open file still has its name. Raises OSError where that cannot be known."""
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _alarm_lost(attempt: int, path: Path, step: int) -> AlarmRaised:
    what = f"{path.name} was deleted or replaced during the run; it goes on with step {step:,}"
    why = "another program removed it, so its lines of earlier steps may be lost; the run itself needs none of them"
    fix = "put the earlier lines back from a copy after the run; the events keep a part of the losses"
    return AlarmRaised(attempt, "metrics", "metrics_lost", path.name, "alert", "disk", what, why, fix, str(path), step)


def _values(line: Any) -> dict[str, Any]:
    """A number that is not finite becomes None. Not dataclasses.asdict, whose deep copy would run in every step."""
    values = {name: getattr(line, name) for name in line.__slots__}
    not_finite = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    return values | dict.fromkeys(not_finite)


def drop_after(path: Path, step: int) -> None:
    """Drop the lines of steps after `step`, which this attempt repeats, and partial lines."""
    try:
        text = outside.read_bytes(path, outside.LOG_BYTES, path.parent).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    except (outside.OutsideError, IsADirectoryError) as error:
        raise outside.as_user_error(error, str(path), f"move it away: mv {path} {path}.aside") from None
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if 0 < _step_of(line) <= step]
    if len(kept) < len(lines):
        write_atomic(path, "".join(kept))


def last_step(path: Path) -> int:
    """The step of the last whole line; 0 where there is none. Raises OSError."""
    with outside.open_regular(path, path.parent) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - outside.MARK_BYTES))
        lines = file.read(outside.MARK_BYTES).decode("utf-8", "replace").splitlines(keepends=True)
    return next((step for line in reversed(lines) if (step := _step_of(line))), 0)


def _step_of(line: str) -> int:
    """The step of a line; 0 for a partial line."""
    if line.endswith("\n"):
        with suppress(ValueError, KeyError, TypeError):
            return int(parse_json(line)["step"])
    return 0
