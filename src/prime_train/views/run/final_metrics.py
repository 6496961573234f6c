"""The last metrics of a run, and how those of two runs differ. Reads the run directory only."""

from __future__ import annotations

import math

from prime_train.core.rundir import RunDir
from prime_train.views.run.history import read_metrics

_SHOWN = ("step", "loss", "reward", "tokens_per_s", "step_s", "peak_memory_gib", "mfu")


def read_final_metrics(run_dir: RunDir) -> dict[str, float]:
    """The value of each metric at the last step that has it."""
    columns = read_metrics(run_dir.metrics)
    finite = {name: [value for value in columns[name] if math.isfinite(value)] for name in _SHOWN}
    return {name: values[-1] for name, values in finite.items() if values}


def list_metric_differences(before: RunDir, after: RunDir) -> dict[str, tuple[float | None, float | None]]:
    """The final metrics of two runs that are not equal. None: the run has no such metric."""
    old, new = read_final_metrics(before), read_final_metrics(after)
    pairs = {name: (old.get(name), new.get(name)) for name in _SHOWN}
    return {name: (was, value) for name, (was, value) in pairs.items() if was != value}
