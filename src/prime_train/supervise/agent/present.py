"""Reads what heartbeats have at times: the GPUs here, and the settings that may change live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.core.outside import RECORD_BYTES, read_json
from prime_train.core.plans import read_plans
from prime_train.core.rundir import RunDir
from prime_train.spec.live_keys import LIVE_KEYS
from prime_train.supervise.watches.gpu.health import read_gpu_health


def read_present_state(run_dir: RunDir, now_s: float) -> dict[str, Any]:
    """`gpus` as in the watch's latest sample, and `values` with accepted changes over those in the config."""
    try:
        found = read_json(run_dir.resolved, RECORD_BYTES, within=run_dir.path)
        values = _read_values(found)
        for plan in read_plans(run_dir.settings):
            values |= {key: value for key, value in plan.values.items() if key in values}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a controller then lacks them
        values = {}
    return {"gpus": read_gpu_health(run_dir, now_s).get("gpus", []), "values": values}


def _read_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a command declares; else the keys of a run that change live."""
    command = config.get("command")
    if command is not None:
        return {each["name"]: each["value"] for each in command["settings"]}
    values = {}
    for key in LIVE_KEYS:
        table, _, name = key.key.partition(".")
        value = config[table].get(name) if isinstance(config.get(table), dict) else None
        if config["run"]["kind"] in key.kinds and isinstance(value, bool | int | float | str):
            values[key.key] = value
    return values
