"""What is to be started, as values. Starts nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variable:
    """One addition to the environment of a child, and why it is made."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One process tree: `variables` are added to the supervisor's own environment."""

    role: str
    argv: tuple[str, ...]
    cwd: Path
    log: Path
    variables: tuple[Variable, ...] = ()


def to_json(launch: Launch) -> str:
    """The text of launch.json. Of the environment it holds the additions alone, never what was inherited."""
    document = {
        "version": 1,
        "role": launch.role,
        "argv": list(launch.argv),
        "cwd": str(launch.cwd),
        "log": str(launch.log),
        "variables": [{"name": v.name, "value": v.value, "reason": v.reason} for v in launch.variables],
    }
    return json.dumps(document, indent=1)
