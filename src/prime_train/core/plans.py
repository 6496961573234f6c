"""The plan files of a run: each has the values of one change of settings. Reads and writes them, judges no value.

`settings/000001.json` of the run directory is version 1. The supervisor writes it once, and no later change
touches it. `settings/000001.dropped` beside it says that the run went back to a step before the change, so it has no
values any more. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from prime_train.core import outside
from prime_train.core.outside import MARK_BYTES
from prime_train.core.rundir import make_folder, write_atomic

MOST_VERSIONS = 1000  # of one run: each checkpoint holds all that are in force
MOST_VALUES = 64  # in one plan
_NAME = re.compile(r"(\d{6})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """One change. `values` and `before`: dotted key -> a TOML value, None for a key that is unset.

    Only a dropped plan has no values.
    """

    version: int
    values: Mapping[str, Any]
    before: Mapping[str, Any]  # in force when the plan was made
    config: Mapping[str, Any] = field(default_factory=dict)  # of the config then: one that changes later overrules it
    by: str = ""
    why: str = ""
    requested_s: float = 0.0  # since the epoch
    id: str = ""  # of the request


def plan_path(folder: Path, version: int) -> Path:
    return folder / f"{version:06d}.json"


def read_plan(folder: Path, version: int) -> ChangePlan:
    """The plan of a version. Raises OSError, and ValueError for a file that is no plan of this version."""
    plan = parse_plan(outside.read_json(plan_path(folder, version), MARK_BYTES, within=folder), version)
    return replace(plan, values={}) if is_dropped(folder, version) else plan


def is_dropped(folder: Path, version: int) -> bool:
    """Whether the run went back to a step before it. Raises OSError where that is not known."""
    # `lexists` takes each error for a missing file, and one rank alone would apply the values.
    try:
        os.lstat(plan_path(folder, version).with_suffix(".dropped"))
    except FileNotFoundError:
        return False
    return True


def drop_plan(folder: Path, version: int) -> None:
    """Take the values of a plan away from each later reader. Raises OSError.

    Its version stays, so no other change gets it.
    """
    make_folder(folder)
    write_atomic(plan_path(folder, version).with_suffix(".dropped"), "")


def parse_plan(found: Any, version: int) -> ChangePlan:
    """The plan in a parsed file. Raises ValueError."""
    try:
        plan = ChangePlan(**found)
    except TypeError:
        raise ValueError("it is no plan: a field is missing or unknown") from None
    tables = (plan.values, plan.before, plan.config)
    texts = (plan.by, plan.why, plan.id)
    if plan.version != version or not all(isinstance(each, dict) for each in tables) or len(plan.values) > MOST_VALUES:
        raise ValueError(f"it is no plan of version {version}")
    if not all(isinstance(text, str) for text in texts) or not isinstance(plan.requested_s, int | float):
        raise ValueError("it is no plan: a field has a wrong type")
    return plan


def list_versions(folder: Path) -> list[int]:
    """The versions that have a file, in order; none without the folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)[:MOST_VERSIONS]


def read_plans(folder: Path) -> Iterator[ChangePlan]:
    """The plans in order, without those that cannot be read."""
    for version in list_versions(folder):
        with contextlib.suppress(OSError, ValueError):
            yield read_plan(folder, version)


def write_plan(folder: Path, plan: ChangePlan) -> None:
    """Write a plan. Raises FileExistsError for a version that has a file, and OSError."""
    path = plan_path(folder, plan.version)
    if os.path.lexists(path):
        raise FileExistsError(f"{path.name} is there already")
    make_folder(folder)
    write_atomic(path, show_plan(plan))


def show_plan(plan: ChangePlan) -> str:
    """The text of a plan file."""
    return json.dumps(asdict(plan))


def load_plan(text: str, version: int) -> ChangePlan:
    """The plan in the text of a file, from another machine. Raises ValueError."""
    if len(text) > MARK_BYTES:
        raise ValueError(f"it has more than {MARK_BYTES} characters")
    return parse_plan(outside.parse_json(text), version)
