"""What is to be started, as values. Starts nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

SHIM = Path(__file__).with_name("shim.py")
_GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class Variable:
    """One addition to the environment of a child, and why it is made."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """How a service tells that it works: its health, and an answer of the kind it is there for."""

    health_url: str
    completion_url: str
    model: str  # as the server calls it
    limit_s: float  # from its start; a service that does not answer by then has failed


@dataclass(frozen=True, slots=True)
class Launch:
    """One process tree: `variables` are added to the supervisor's own environment."""

    role: str
    argv: tuple[str, ...]
    cwd: Path
    log: Path
    variables: tuple[Variable, ...] = ()
    ready: Ready | None = None  # of a service; what is launched after it waits until it answers
    files: tuple[tuple[Path, str], ...] = ()  # written before it starts
    aside: tuple[Path, ...] = ()  # what may not be there when it starts: renamed then, never deleted


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command below guard.py, which ends its whole tree where the supervisor dies.

    For a program whose parts outlive the process that was started, and would hold their GPUs.
    """
    return (sys.executable, "-I", "-S", str(_GUARD), *argv)


def to_json(launch: Launch) -> str:
    """The text of launch-ROLE.json. Of the environment it holds the additions alone, never what was inherited."""
    document = {
        "version": 1,
        "role": launch.role,
        "argv": list(launch.argv),
        "cwd": str(launch.cwd),
        "log": str(launch.log),
        "variables": [{"name": v.name, "value": v.value, "reason": v.reason} for v in launch.variables],
    } | ({"ready": asdict(launch.ready)} if launch.ready is not None else {})
    if launch.files:
        document["files"] = [str(path) for path, _ in launch.files]
    if launch.aside:
        document["aside"] = [str(path) for path in launch.aside]
    return json.dumps(document, indent=1)
