"""Reads what heartbeats have at times: GPUs, settings that change live, pins, what it costs by, the page at W&B."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import reduce
from operator import getitem
from typing import Any

from prime_train.checkpoints.layout import PIN
from prime_train.checkpoints.listing import list_newest_first
from prime_train.core.machines import count_machines
from prime_train.core.outside import MARK_BYTES, RECORD_BYTES, open_regular, read_json
from prime_train.core.plans import ChangePlan, read_plans
from prime_train.core.rundir import RunDir
from prime_train.events.step_line import METRICS, read_step_line
from prime_train.spec.live_keys import LIVE_KEYS, OF_SUPERVISOR, TRAINED
from prime_train.supervise.services.used_gpus import find_gpus
from prime_train.supervise.services.wandb_links import find_link
from prime_train.supervise.watches.gpu.health import read_gpu_health

_PLANS_SENT = 20
_LOOKS_FOR_PAGE = 60  # a trainer prints it when it starts
_PINS_SENT = 100


class PresentState:
    """What one run has besides its events. Its config does not change while its supervisor lives."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._about: dict[str, Any] = {}
        self._looks = 0

    def read(self, now_s: float) -> dict[str, Any]:
        """`gpus` as in the watch's latest sample, `values` with accepted `plans` over those in the config.

        `pins`: steps. `about`: by what it costs, and its page.
        """
        run_dir, found = self._run_dir, dict[str, Any]()
        try:
            config = read_json(run_dir.resolved, RECORD_BYTES, within=run_dir.path)
            plans = list(read_plans(run_dir.settings))
            found["values"] = _read_values(config, plans)
            found["plans"] = [_describe(plan) for plan in plans[-_PLANS_SENT:]]
            found["about"] = self._find_about(config)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a controller then lacks them
            pass
        with suppress(OSError):
            if folders := list_newest_first(run_dir.checkpoints):  # another trainer saves elsewhere
                found["pins"] = [one.step for one in folders if os.path.lexists(f"{one.folder}/{PIN}")][:_PINS_SENT]
        return found | {"gpus": read_gpu_health(run_dir, now_s).get("gpus", [])}

    def _find_about(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The search for the page is in logs, so it ends after some minutes."""
        if not self._about:
            used = find_gpus(self._run_dir, None, config)
            is_served = bool(config.get("server") or config.get("inference"))
            self._about = {"used": used and used._asdict(), "is_served": is_served, "wandb": None}
            self._about["machines"] = count_machines(config)
        if self._about["wandb"] is None and self._looks < _LOOKS_FOR_PAGE:
            self._looks += 1
            self._about["wandb"] = find_link(self._run_dir, config)
        return self._about


def read_latest_step(run_dir: RunDir) -> dict[str, Any]:
    """The times of the latest step in metrics.jsonl, and what no event has; nothing without such a line."""
    lines: list[bytes] = []
    with suppress(OSError), open_regular(run_dir.metrics, run_dir.path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MARK_BYTES))
        lines = file.read(MARK_BYTES).rpartition(b"\n")[0].splitlines()
    line = read_step_line(lines[-1]) if lines else None
    if line is None:
        return {}
    rate = line.figures[METRICS.index("lr")]
    return {"metrics": {"step": line.step, "times": line.times, "lr": rate if rate == rate else None}}


def _describe(plan: ChangePlan) -> dict[str, Any]:
    return {name: one for name, one in asdict(plan).items() if name not in ("config", "id")}


def _list_keys(config: Mapping[str, Any]) -> Iterator[str]:
    """The keys that change live, as `prime-train set` lists them: without a trainer that reads them, the supervisor's.

    By the document, because a RunSpec would need pydantic, which takes more memory than the agent has.
    """
    kind = config["run"]["kind"]
    has_ranks = config.get("command") is None and config.get("format") == "run.toml" and kind in TRAINED
    for each in LIVE_KEYS:
        if kind in each.kinds and (has_ranks or each.key.startswith(OF_SUPERVISOR)):
            yield each.key


def _read_values(config: Mapping[str, Any], plans: Iterable[ChangePlan]) -> dict[str, Any]:
    """The settings that a command declares, and the keys that change live, each with its value in force.

    None: it is unset. As for the ranks, a key that the config has changed since a plan counts as in the config.
    """
    command = config.get("command")
    declared = {each["name"]: each["value"] for each in command["settings"]} if command is not None else {}
    own = {}
    for key in _list_keys(config):
        with suppress(KeyError, TypeError):  # a config of an earlier release lacks it
            own[key] = reduce(getitem, key.split("."), config)
    values = declared | own
    for plan in plans:
        kept = {key for key in plan.values if key in declared or (key in own and plan.config.get(key) == own[key])}
        if command is not None or plan.values.keys() <= own.keys():  # else it is of another program
            values |= {key: plan.values[key] for key in kept}
    return values
