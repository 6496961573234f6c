"""Writes one line per optimizer step to metrics.jsonl, and a Progress event from time to time. Measures nothing."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.rundir import write_atomic
from prime_train.events import Progress
from prime_train.trainer.attempt import Attempt

_PROGRESS_INTERVAL_S = 0.3


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


class Metrics:
    """Writes the metrics on rank 0. On other ranks its calls do nothing."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._written_s = 0.0
        self._pending: Progress | None = None
        self._file: int | None = None
        if attempt.rank == 0:
            drop_after(attempt.run_dir.metrics, attempt.resume_step)
            self._file = os.open(attempt.run_dir.metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, line: StepMetrics) -> None:
        if self._file is None:
            return
        # Not dataclasses.asdict, which copies deeply: this runs in every step.
        text = json.dumps({name: getattr(line, name) for name in StepMetrics.__slots__}, allow_nan=False)
        os.write(self._file, text.encode() + b"\n")
        self._pending = Progress(self._attempt.number, line.step, line.loss, line.tokens_per_s, line.tokens_seen)
        if time.monotonic() - self._written_s >= _PROGRESS_INTERVAL_S:
            self.flush()

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


def drop_after(path: Path, step: int) -> None:
    """Drop the lines of steps after `step`, which this attempt repeats, and partial lines."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept = [line for line in lines if 0 < _step_of(line) <= step]
    if len(kept) < len(lines):
        write_atomic(path, "".join(kept))


def _step_of(line: str) -> int:
    """The step of a line; 0 for a partial line."""
    if line.endswith("\n"):
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["step"])
    return 0
