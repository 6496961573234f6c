"""Looks at the directory that a run will write to: who holds it, what an earlier run left there. Changes nothing.

What checkpoints there are, and which are complete, is the program's to know: see `Program.run_folder`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from prime_train.checkpoints.layout import Checkpoint
from prime_train.core.process_id import live_holder
from prime_train.core.rundir import RunDir
from prime_train.facts.run_inputs import RunFolder, StepFolder

_TIMED_STEPS = 200
_LINE_BYTES = 1024  # a line of metrics.jsonl has a few hundred


def read_run_folder(
    path: Path,
    checkpoints: Sequence[Checkpoint],
    leftovers: Sequence[str] = (),
    target: StepFolder | None = None,
    step_times: Sequence[float] = (),
) -> RunFolder:
    """What stands at `path`, which need not exist. `checkpoints` are newest first."""
    holder = live_holder(RunDir(path).lock)
    return RunFolder(
        path,
        str(holder) if holder is not None else "",
        tuple(leftovers),
        tuple(StepFolder(one.step, one.path, one.problem) for one in checkpoints),
        target,
        statistics.median(step_times) if step_times else None,
        len(step_times),
    )


def read_step_times(metrics: Path) -> list[float]:
    """Seconds of the last steps, out of a metrics.jsonl; none where the file is missing."""
    try:
        with open(metrics, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TIMED_STEPS * _LINE_BYTES))
            lines = file.read().split(b"\n")[-_TIMED_STEPS - 1 :]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [seconds for line in lines if (seconds := _step_s(line)) is not None]


def _step_s(line: bytes) -> float | None:
    """The time of a step; None where the line is not a whole one."""
    try:
        seconds = json.loads(line)["step_s"]
    except (ValueError, KeyError, TypeError):
        return None
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def times_between(checkpoints: Sequence[Checkpoint]) -> list[float]:
    """Seconds of a step between each two complete checkpoints, by when their folders were last written."""
    written = [(one.step, one.path.stat().st_mtime) for one in reversed(checkpoints) if one.complete]
    return [(later - before) / (to - since) for (since, before), (to, later) in pairwise(written) if later > before]
