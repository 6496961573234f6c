"""The last metrics of a run, and its page at Weights & Biases. Reads the run directory only, and no network."""

from __future__ import annotations

import math
from contextlib import suppress
from urllib.parse import quote

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import RECORD_BYTES
from prime_train.core.rundir import RunDir
from prime_train.supervise.launch.run_directory import read_run_spec
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


def find_wandb_link(run_dir: RunDir) -> str | None:
    """The page of a mirrored run; None without a mirror that is online, or where its entity is not known."""
    with suppress(OSError, ValueError, KeyError, TypeError, UserError):
        run = read_run_spec(run_dir)
        mirror = outside.read_json(run_dir.wandb / "mirror.json", RECORD_BYTES, within=run_dir.path)
        settings = None if run is None else run.prime_train.wandb
        if settings is not None and settings.mode == "online" and settings.entity and settings.project:
            parts = (settings.entity, settings.project, "runs", str(mirror["run_id"]))
            return "https://wandb.ai/" + "/".join(quote(part, safe="") for part in parts)
    return None
