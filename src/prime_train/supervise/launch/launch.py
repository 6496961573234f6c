"""The values that describe a process to start. Starts nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

SHIM = Path(__file__).with_name("shim.py")
_GUARD_ARGV = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))


@dataclass(frozen=True, slots=True)
class Variable:
    """One addition to the environment of a child, and its reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """How to check that a service works: by its health and by one completion."""

    health_url: str
    completion_url: str
    model: str  # its name at the server
    limit_s: float  # from its start; a service that does not answer by then has failed
    has_tokenizer: bool = True  # without one, the prompt is a token id


@dataclass(frozen=True, slots=True)
class Launch:
    """One process tree: `variables` are added to the supervisor's own environment."""

    role: str
    argv: tuple[str, ...]
    cwd: Path
    log: Path
    variables: tuple[Variable, ...] = ()
    ready: ReadyCheck | None = None  # only of a service; the next launch waits until it is ready
    files: tuple[tuple[Path, str], ...] = ()  # written before it starts
    aside: tuple[Path, ...] = ()  # paths that must not exist when it starts; they are renamed


def add_guard(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command run by guard.py, which ends its whole tree if the supervisor dies. The guard is the child that events
    name. A launch without it is started below a guard too, and events name the program."""
    return (*_GUARD_ARGV, *argv)


def add_reporting_guard(argv: tuple[str, ...], report: int) -> tuple[str, ...]:
    """The command run by guard.py, which writes the identity of the program to the descriptor `report`. A command that
    has a guard already stays as it is."""
    if argv[: len(_GUARD_ARGV)] == _GUARD_ARGV:
        return argv
    return (*_GUARD_ARGV, "--report", str(report), str(os.getpid()), *argv)


def is_guard(command: str) -> bool:
    """Whether the command line, joined by spaces, is that of guard.py."""
    return command.startswith(" ".join(_GUARD_ARGV) + " ")


def to_json(launch: Launch) -> str:
    """The text of launch-ROLE.json. It holds only the additions to the environment, never inherited variables."""
    document = {
        "version": 1,
        "role": launch.role,
        "argv": list(launch.argv),
        "cwd": str(launch.cwd),
        "log": str(launch.log),
        # Only what is added here: the environment of the user may hold secrets in any variable.
        "variables": [{"name": v.name, "value": v.value, "reason": v.reason} for v in launch.variables],
    } | ({"ready": asdict(launch.ready)} if launch.ready is not None else {})
    if launch.files:
        document["files"] = [str(path) for path, _ in launch.files]
    if launch.aside:
        document["aside"] = [str(path) for path in launch.aside]
    return json.dumps(document, indent=1)


@dataclass(frozen=True, slots=True)
class Role:
    """One process tree of an attempt and the GPUs that it needs."""

    name: str
    gpus: int
    serves: bool = False  # a service: others wait for it, and the next attempt waits for its GPU memory


@dataclass(frozen=True, slots=True)
class Host:
    """The facts about the supervisor's process that the plan needs."""

    environment: Mapping[str, str]
    cores: int
    supervisor: str  # "PID:START_TICKS"
    open_files: tuple[int, int] | None = None  # soft and hard limit

    @property
    def given(self) -> dict[str, str]:
        """The variables that were set by hand. An empty value counts as not set."""
        return {name: value for name, value in self.environment.items() if value}


class EnvNote(NamedTuple):
    """A variable that the plan does not set, and why."""

    how: Literal["kept", "ignored", "left out", "passed on", "limit"]
    name: str
    value: str  # masked if it is a secret
    reason: str


@dataclass(frozen=True, slots=True)
class Needs:
    """The variables that one role needs. Values that were set by hand replace `wanted`, but not `forced`."""

    wanted: tuple[Variable, ...]
    forced: tuple[Variable, ...] = ()
    left_out: tuple[EnvNote, ...] = ()
