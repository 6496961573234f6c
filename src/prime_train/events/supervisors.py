"""What the supervisor writes of its own doing, one frozen value each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A supervisor took the run's lock. A run has one of these per start of `prime-train run`."""

    kind: ClassVar[str] = "run_opened"
    run: str
    pid: int
    max_steps: int
    version: str


@dataclass(frozen=True, slots=True)
class LaunchAsked:
    """Written before the spawn: an attempt whose ChildStarted is missing may or may not have begun."""

    kind: ClassVar[str] = "launch_asked"
    attempt: int
    resume_step: int  # 0 = from the beginning
    rejected: tuple[str, ...] = ()  # newer checkpoints that were not taken: "step_40: model.distcp has 10 of 40 bytes"
    roles: tuple[str, ...] = ("trainer",)  # in the order of their start; each waits for the services before it
    services: tuple[str, ...] = ()  # those of the roles that serve the others, and are up once they answer


@dataclass(frozen=True, slots=True)
class ChildStarted:
    kind: ClassVar[str] = "child_started"
    attempt: int
    role: str
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat: with the pid it names one process for ever
    log: str


@dataclass(frozen=True, slots=True)
class HangFound:
    """No progress for longer than the limit of the phase the trainer was in."""

    kind: ClassVar[str] = "hang_found"
    attempt: int
    silent_s: float
    limit_s: float
    phase: str
    activity: str = ""  # what its processes did meanwhile


@dataclass(frozen=True, slots=True)
class SignalSent:
    kind: ClassVar[str] = "signal_sent"
    attempt: int
    signal: str  # "stop_requested" (the file), "SIGTERM", "SIGKILL"
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The attempt's whole process tree is gone. `newest_complete` was read from the disk after its end."""

    kind: ClassVar[str] = "attempt_ended"
    attempt: int
    returncode: int | None  # as subprocess gives it: -9 = killed by signal 9; None = found dead by a later supervisor
    outcome: str  # "finished" | "stopped" | "failed"
    cause_class: str  # "" | "config" | "auth" | "bug" | "signal" | "hang" | "oom" | "disk" | "env" | "network" | ...
    what: str
    why: str
    fix: str
    where: str
    newest_complete: int  # 0 = none
    cause_id: str = ""  # the signature or the alarm that it was told by: "VLLM003", "gpu_lost"
    retry: str = ""  # what the signature says of another try: "no" | "after_fix" | "yes"; "" = by the class


@dataclass(frozen=True, slots=True)
class StopAsked:
    kind: ClassVar[str] = "stop_asked"
    by: str  # "SIGINT", "SIGTERM", or what a watch pauses the run for
    saves: bool = True  # False: a save would fail or do harm, and the trainer is ended without one


@dataclass(frozen=True, slots=True)
class ClockJumped:
    """The wall clock left the monotonic one: it was set, or the machine slept. Silences are counted without it."""

    kind: ClassVar[str] = "clock_jumped"
    jump_s: float


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The supervisor's last word. `state` is "finished", "stopped" or "failed"."""

    kind: ClassVar[str] = "run_closed"
    state: str
    exit_code: int
    reason: str
