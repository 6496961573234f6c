"""Reads and replaces single values of a RunSpec by their dotted keys. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import Any

from prime_train.core.plans import ChangePlan
from prime_train.spec.answers import global_batch
from prime_train.spec.live_keys import TRAINED
from prime_train.spec.run_spec import RunSpec, from_json, to_json


def read_value(run: RunSpec, key: str) -> Any:
    """The value of `key`, "table.field"; a list for an array. Raises AttributeError for a key that the run lacks."""
    value: Any = reduce(getattr, key.split("."), run)
    return list(value) if isinstance(value, tuple) else value


def has_key(run: RunSpec, key: str) -> bool:
    """Whether a run has the key, "table.field"; a table that is unset has none."""
    part: Any = run
    for name in key.split("."):
        if not is_dataclass(part) or all(name != each.name for each in fields(part)):
            return False
        part = getattr(part, name)
    return True


def takes_plans(run: RunSpec) -> bool:
    """Whether the trainer reads changes of its settings. Any supervisor reads those of its own keys."""
    if run.command is not None:
        return bool(run.command.settings)
    return run.format == "run.toml" and run.run.kind in TRAINED


RATE_NAMES = ("lr", "learning_rate")  # by which a script declares its learning rate in [[command.settings]]


def read_rates(config: RunSpec) -> dict[str, float]:
    """The learning rates that change live, by key, as in the config; empty where none does."""
    if config.command is not None:
        declared = ((each.name, each.value) for each in config.command.settings if each.name in RATE_NAMES)
        return {name: value for name, value in declared if value is not None}
    if not takes_plans(config):
        return {}
    found = {"optim.lr": config.optim.lr, "optim.muon_lr": config.optim.muon_lr}
    return {key: value for key, value in found.items() if value is not None}


def pin_global_batch(run: RunSpec) -> RunSpec:
    """The run with a global batch of its own: one that the config omits would change with the micro-batch."""
    if run.batch.global_batch is not None or run.batch.global_batch_tokens is not None:
        return run
    return replace(run, batch=replace(run.batch, global_batch=global_batch(run)))


def with_values(run: RunSpec, values: Mapping[str, Any]) -> RunSpec:
    """The run with these values, each judged by its type and bounds. Raises ValueError and AttributeError."""
    if "batch.micro_batch" in values:
        run = pin_global_batch(run)
    for key, value in values.items():
        read_value(run, key)  # `replace` raises TypeError for a name that the table lacks
        run = _put(run, key.split("."), tuple(value) if isinstance(value, list) else value)
    return from_json(to_json(run))


def _put(part: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return replace(part, **{name: _put(getattr(part, name), rest, value) if rest else value})


def find_in_force(config: RunSpec, plans: Iterable[ChangePlan]) -> dict[str, Any]:
    """The values of the plans, the later ones over the earlier ones, but for names that a command has declared.

    A key that the config has changed since a plan was made counts as in the config: its author saw the plan. A plan
    with a key that the run lacks is of another program, and no rank applies it.
    """
    values: dict[str, Any] = {}
    for plan in plans:
        known = {key: value for key, value in plan.values.items() if has_key(config, key)}
        if len(known) < len(plan.values) and config.command is None:
            continue
        kept = {key: value for key, value in known.items() if plan.config.get(key) == read_value(config, key)}
        values |= kept
    return values


def overlay(config: RunSpec, plans: Iterable[ChangePlan]) -> RunSpec:
    """The run with the values of the plans that are in force."""
    values = find_in_force(config, plans)
    return with_values(config, values) if values else config


def describe_values(values: Mapping[str, Any]) -> tuple[str, ...]:
    """ "optim.lr = 0.0002" for each value, as TOML writes it; a key without a value is unset."""
    return tuple(f"{key} = {'unset' if value is None else _as_toml(value)}" for key, value in values.items())


def _as_toml(value: Any) -> str:
    """A flag, a number, a string or a list of them. JSON has the same notation for these."""
    return json.dumps(value)
