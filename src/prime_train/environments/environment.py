"""The `Environment` protocol and its values: messages, tools and tasks. No effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

Split = Literal["train", "held_out"]
ToolRole = Literal["system", "user", "assistant", "tool"]
SPLITS: tuple[Split, ...] = get_args(Split)
ROLES: tuple[ToolRole, ...] = get_args(ToolRole)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote. `arguments` is its text, which may be no valid JSON."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: ToolRole
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str = ""  # of a tool: the call that it answers
    name: str = ""  # of a tool
    reasoning: str = ""  # of an assistant: thoughts that its template writes apart from the content


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema of an object


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment. `payload` is the environment's own: the expected answer, a row of a dataset."""

    environment: str  # "reverse-text"
    split: Split
    number: int  # the same number always poses the same task
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """The environment's answer to a turn of the model."""

    messages: tuple[Message, ...] = ()
    done: bool = True
    tool_s: float = 0.0  # of it, the time in tools


class EnvironmentFailed(Exception):
    """The environment failed: not the model's fault, and not a reward of zero. `trace` is its own traceback."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


class Environment(Protocol):
    """Poses tasks and judges answers. Its methods may be called from several threads at once.

    A call that is too slow, raises, or returns what is no finite number, becomes an `EnvironmentFailed`.
    """

    @property
    def name(self) -> str:
        """The kind of a built-in environment, the id of a verifiers taskset."""

    @property
    def size(self) -> int | None:
        """Number of different training tasks; None = as many as wanted."""

    def task(self, split: Split, number: int) -> Task:
        """The task with this number, from 0. A limited set of tasks begins again after `size` of them."""

    def demonstrate(self, task: Task) -> tuple[Message, ...] | None:
        """The messages that solve the task, after those of the task; None if the environment cannot show that."""

    def respond(self, task: Task, messages: Sequence[Message]) -> Reply:
        """The answer to the model's last turn. `messages` is the whole chat. Raises EnvironmentFailed."""

    def score(self, task: Task, messages: Sequence[Message]) -> float:
        """The reward of a finished chat, usually 0 to 1. Raises EnvironmentFailed."""

    def close(self) -> None:
        """End its processes."""
