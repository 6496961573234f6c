"""Writes the document of all runs in the text format of Prometheus. Pure.

Source: prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OF_A_RUN = {  # key of a row: name, help
    "step": ("step", "Optimizer steps that are done."),
    "max_steps": ("max_steps", "The last step of the run."),
    "loss": ("loss", "Loss of the latest step."),
    "reward": ("reward", "Mean reward over the rollouts of the latest step."),
    "tokens_per_s": ("tokens_per_second", "Tokens trained on per second."),
    "restarts": ("restarts_total", "Attempts that followed a failed one."),
    "last_sign_s": ("last_sign_timestamp_seconds", "When the run last wrote something."),
    "newest_complete": ("newest_checkpoint_step", "The newest complete checkpoint."),
}
_OF_A_GPU = {
    "utilisation_percent": ("gpu_utilisation_percent", "Part of the time in which a kernel ran."),
    "used_bytes": ("gpu_memory_used_bytes", "Memory in use."),
    "temperature_c": ("gpu_temperature_celsius", "Temperature of the GPU."),
}
_STATES = ("starting", "running", "recovering", "paused", "stopped", "finished", "failed", "died", "unreadable")
_SILENT = ("unknown", "lost")  # a run on another machine


def write_metrics(document: Mapping[str, Mapping[str, Any]]) -> str:
    """The samples of all runs and GPUs. A value that is not known has no sample."""
    return "".join(f"{line}\n" for line in (*_runs(document["runs"]), *_gpus(document["machines"])))


def _runs(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield from _describe("run_state", "1 for the state of the run, 0 for the others.")
    for name, row in rows.items():
        for state in (*_STATES, *(_SILENT if "liveness" in row else ())):
            yield f"prime_train_run_state{_labels(run=name, state=state)} {int(row['state'] == state)}"
    for key, (metric, text) in _OF_A_RUN.items():
        yield from _describe(metric, text)
        for name, row in rows.items():
            if row[key] is not None and not (key == "max_steps" and row["is_endless"]):
                yield f"prime_train_{metric}{_labels(run=name)} {row[key]}"


def _gpus(machines: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for key, (metric, text) in _OF_A_GPU.items():
        yield from _describe(metric, text)
        for host, machine in machines.items():
            for uuid, device in machine["devices"].items():
                if device.get(key) is not None:
                    labels = _labels(host=host, gpu=str(device["index"]), uuid=uuid)
                    yield f"prime_train_{metric}{labels} {device[key]}"


def _describe(metric: str, text: str) -> Iterator[str]:
    yield f"# HELP prime_train_{metric} {text}"
    yield f"# TYPE prime_train_{metric} {'counter' if metric.endswith('_total') else 'gauge'}"


def _labels(**values: str) -> str:
    quoted = (f'{name}="{_escape(value)}"' for name, value in values.items())
    return "{" + ",".join(quoted) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
