"""What a supervisor may do next, one frozen value each. Decides and does nothing."""

from __future__ import annotations

from dataclasses import dataclass

from prime_train.core.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Launch:
    attempt: int


@dataclass(frozen=True, slots=True)
class StartRole:
    """Start the next process of the attempt: what it waits for answers."""

    attempt: int
    role: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """Silence will soon be too long: look at what the processes do, so that it is known by `until_s`."""

    attempt: int
    until_s: float


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Write down what can be known of the attempt, before it is ended."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take a smaller micro-batch from here on."""

    attempt: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Use this GPU no more."""

    gpu: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """End the run, to be gone on with by a person. `saves`: with a checkpoint, where one can still be written."""

    reason: str
    saves: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_s`, unless something happens."""

    until_s: float


@dataclass(frozen=True, slots=True)
class AskStop:
    """Ask the trainer for a checkpoint and its end."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class FindHang:
    """Silence beyond the limit; a hang unless the processes are seen at work."""

    attempt: int
    silent_s: float
    limit_s: float
    phase: str
    until_s: float  # so long may it go on where its processes are seen at work; not after now where its time is up


@dataclass(frozen=True, slots=True)
class Signal:
    """Send SIGABRT, SIGTERM or SIGKILL to every process of the attempt; with `roots`, to those alone that were started
    here, which end the rest themselves."""

    attempt: int
    signal: str
    reason: str
    roots: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close the account of an attempt whose exit will not come: nothing of it was started, or it outlives SIGKILL."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Close:
    state: str  # "finished" | "stopped" | "failed"
    exit_code: ExitCode
    reason: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The run is closed."""


Action = (
    Launch
    | StartRole
    | Wait
    | AskStop
    | Pause
    | Suspect
    | FindHang
    | KeepEvidence
    | Signal
    | GiveUp
    | Shrink
    | LeaveOut
    | Close
    | Nothing
)
