"""The next actions that `decide` can return, one frozen value each."""

from __future__ import annotations

from dataclasses import dataclass

from prime_train.core.errors import ExitCode
from prime_train.events import RequestAnswered


class Action:
    """What the supervisor does next."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PlanLaunch(Action):
    """Plan this attempt; StartRole then starts its processes."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StartRole(Action):
    """Start the next process of the attempt; every service that the process waits for is ready."""

    attempt: int
    role: str


@dataclass(frozen=True, slots=True)
class Suspect(Action):
    """The silence limit is near: start to check what the processes do, so that the answer is there by `until_s`."""

    attempt: int
    until_s: float


@dataclass(frozen=True, slots=True)
class FindHang(Action):
    """The silence limit is passed; the attempt hangs unless its processes are seen at work."""

    attempt: int
    silent_s: float
    limit_s: float
    phase: str
    until_s: float  # processes that are seen at work may stay silent until then; in the past if their time is up


@dataclass(frozen=True, slots=True)
class KeepEvidence(Action):
    """Write down the state of the attempt's processes before they are ended."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Shrink(Action):
    """Use a smaller micro-batch from the next attempt on."""

    attempt: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class LeaveOut(Action):
    """Stop using this GPU."""

    gpu: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pause(Action):
    """Stop the run until a person starts it again. `saves`: with a checkpoint, if one can still be written."""

    reason: str
    saves: bool


@dataclass(frozen=True, slots=True)
class Wait(Action):
    """Do nothing before `until_s`, unless a message or an event arrives."""

    until_s: float


@dataclass(frozen=True, slots=True)
class AskStop(Action):
    """Request that the trainer writes a checkpoint and ends."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskSave(Action):
    """Request that the trainer writes a checkpoint and goes on."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class StartGpuTest(Action):
    """Test GPUs that no attempt uses."""

    request_id: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnswerCommand(Action):
    """Answer a person's command that is over."""

    answer: RequestAnswered


@dataclass(frozen=True, slots=True)
class Signal(Action):
    """Send SIGABRT, SIGTERM or SIGKILL to every process of the attempt.

    With `roots`, only to the processes that the supervisor started, which end the others themselves. With `workers`,
    only to the training processes below them.
    """

    attempt: int
    signal: str
    reason: str
    roots: bool = False
    workers: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp(Action):
    """Record the end of an attempt that gives no exit code: no process was started, or one survives SIGKILL."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Close(Action):
    """End the run."""

    state: str  # "finished" | "stopped" | "failed"
    exit_code: ExitCode
    reason: str


@dataclass(frozen=True, slots=True)
class Nothing(Action):
    """The run is closed."""
