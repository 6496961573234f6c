"""Reads the heartbeats of agents into the document of a job on a machine: typed and bounded, or left out. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prime_train.bus.fleet_events import SETTINGS_KEPT, Document, add_point, cut, finite
from prime_train.core.machines import count_machines
from prime_train.events.bounds import LATEST_S, MOST_STEPS, MOST_VALUE

_MOST_GPUS = 64
_MOST_VALUES = 96  # live settings: 64 of a command, and those of its supervisor
_MOST_PIDS = 16  # on one GPU
_MOST_GPUS_USED = 100_000  # of one run
_MOST_PINS = 100
_MOST_TIMES = 16
_VALUE_CHARACTERS = 500  # of a setting that is a list or a table, as JSON
_PLANS_CHARACTERS = 64 << 10  # of all plans, as JSON: a document fits into one key


def read_beat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a heartbeat that have their types; an agent of another version may lack some."""
    kinds: dict[str, tuple[type, ...]] = {"state": (str,), "attempt": (int,), "step": (int,)}
    kinds |= {"progress_s": (int, float, type(None)), "exit_code": (int, type(None))}
    found = {name: body[name] for name, kind in kinds.items() if name in body and type(body[name]) in kind}
    found = {name: value for name, value in found.items() if not isinstance(value, int | float) or _fits(value)}
    return found | ({"state": found["state"][:64]} if "state" in found else {})


def read_more(document: Document, body: Mapping[str, Any]) -> dict[str, Any]:
    """What only some heartbeats have: GPUs, settings and changes, figures of the latest step, pins, cost, page."""
    found: dict[str, Any] = {}
    match body.get("gpus"):
        case list() as gpus:
            read = [
                _read_gpu(gpu) for gpu in gpus[:_MOST_GPUS] if isinstance(gpu, dict) and type(gpu.get("index")) is int
            ]
            out = {one["uuid"] for one in document["left_out"]}
            found["gpus"] = [gpu for gpu in read if gpu["uuid"] not in out]
    match body.get("values"):
        case dict() as values:
            found["values"] = _read_values(values)
    match body.get("plans"):
        case list() as plans:
            found["settings"] = _read_plans(plans)
    match body.get("pins"):
        case list() as pins:
            found["pins"] = [step for step in pins if type(step) is int and 0 < step <= MOST_STEPS][:_MOST_PINS]
    match body.get("metrics"):
        case {"step": int(step), "times": dict() as times} if 0 <= step <= MOST_STEPS:
            pairs = [(name[:40], _number(one)) for name, one in list(times.items())[:_MOST_TIMES]]
            found["times"] = {name: number for name, number in pairs if number is not None}
            points = document["rate"].get("points", [])
            if (rate := _number(body["metrics"].get("lr"))) is not None and (not points or step > points[-1][0]):
                found["rate"] = add_point(document["rate"], step, [rate])
    match body.get("about"):
        case dict() as about:
            found["about"] = _read_about(about)
    return found


def _read_about(about: Mapping[str, Any]) -> dict[str, Any]:
    """`used`: type and number of the GPUs by which it costs; without it those of its ranks, unless it `is_served`.

    `machines`: how many train together.
    """
    page = about.get("wandb")
    is_page = isinstance(page, str) and page.startswith("https://") and len(page) <= _VALUE_CHARACTERS
    found: dict[str, Any] = {
        "used": None,
        "is_served": about.get("is_served") is not False,
        "wandb": page if is_page else None,
        "machines": count_machines({"parallel": about}),
    }
    match about.get("used"):
        case {"device": str(device), "number": int(number)} if 0 < number <= _MOST_GPUS_USED:
            found["used"] = {"device": cut(device, 64), "number": number}
    return found


def _read_gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    pids = gpu.get("pids")
    found = [pid for pid in pids if type(pid) is int][:_MOST_PIDS] if isinstance(pids, list) else []
    others = {name[:40]: _read_scalar(value) for name, value in list(gpu.items())[:24] if name != "pids"}
    return others | {"uuid": str(others.get("uuid") or "")[:64], "pids": found}


def _read_plans(plans: list[Any]) -> list[dict[str, Any]]:
    """The latest changes of settings, oldest first, each with the values before it."""
    found: list[dict[str, Any]] = []
    left = _PLANS_CHARACTERS
    for plan in reversed(plans[-SETTINGS_KEPT:]):
        if not isinstance(plan, dict) or type(plan.get("version")) is not int:
            continue
        texts = {name: cut(plan[name]) if isinstance(plan.get(name), str) else "" for name in ("by", "why")}
        tables = {name: _read_values(each) for name in ("values", "before") if isinstance(each := plan.get(name), dict)}
        one = {"version": plan["version"], "requested_s": _number(plan.get("requested_s")) or 0.0, **texts, **tables}
        left -= len(json.dumps(one))
        if left < 0 or "values" not in one:
            break
        found.append(one)
    return found[::-1]


def _read_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {cut(name): _read_value(value) for name, value in list(values.items())[:_MOST_VALUES]}


def _read_value(value: Any) -> Any:
    """A setting may be a list or a table, too; of a long one the begin is shown as a text."""
    if isinstance(value, list | dict):
        text = json.dumps(value)
        return value if len(text) <= _VALUE_CHARACTERS else cut(text)
    return _read_scalar(value)


def _read_scalar(value: Any) -> Any:
    """A text that is not long, or a number; None for all else."""
    if isinstance(value, str):
        return cut(value)
    return value if isinstance(value, bool | int | float) and _fits(value) else None


def _number(value: Any) -> float | None:
    return finite(value) if type(value) in (int, float) and abs(value) <= MOST_VALUE else None


def _fits(value: float) -> bool:
    return -MOST_STEPS <= value <= max(MOST_STEPS, LATEST_S)
