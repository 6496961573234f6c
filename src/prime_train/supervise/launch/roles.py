"""What a role of an attempt is, and what its processes need from the machine. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prime_train.supervise.launch.launch import Variable


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
