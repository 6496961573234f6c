"""The events of the supervisor about its own actions, one frozen value each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A supervisor has the run's lock. One event per start of `prime-train run`."""

    kind: ClassVar[str] = "run_opened"
    run: str
    pid: int
    max_steps: int
    version: str
    config: int = 0  # the number of the text that its attempts have, from 1; 0 = not known
    by: str = ""  # USER@HOST


@dataclass(frozen=True, slots=True)
class LaunchAsked:
    """Written before the spawn. Without a ChildStarted, the attempt may or may not have started."""

    kind: ClassVar[str] = "launch_asked"
    attempt: int
    resume_step: int  # 0 = from the beginning
    rejected: tuple[str, ...] = ()  # newer checkpoints that were not usable: "step_40: model.distcp has 10 of 40 bytes"
    roles: tuple[str, ...] = ("trainer",)  # in start order; each role waits for the services before it
    services: tuple[str, ...] = ()  # the roles that are servers, and are ready when they answer
    knows_step: bool = True  # False: the trainer goes on from where it likes, and nothing shows from where


@dataclass(frozen=True, slots=True)
class ChildStarted:
    kind: ClassVar[str] = "child_started"
    attempt: int
    role: str
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat; pid and start identify one process uniquely
    log: str


@dataclass(frozen=True, slots=True)
class HangFound:
    """No progress for longer than the limit of the trainer's current phase."""

    kind: ClassVar[str] = "hang_found"
    attempt: int
    silent_s: float
    limit_s: float
    phase: str
    activity: str = ""  # what its processes were doing


@dataclass(frozen=True, slots=True)
class SignalSent:
    kind: ClassVar[str] = "signal_sent"
    attempt: int
    signal: str  # "stop_requested" and "save_requested" (the files), "SIGTERM", "SIGKILL"
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """All processes of the attempt have ended. `newest_complete` is read from the disk after that."""

    kind: ClassVar[str] = "attempt_ended"
    attempt: int
    returncode: int | None  # as in subprocess: -9 = killed by signal 9; None = a later supervisor found it dead
    outcome: str  # "finished" | "stopped" | "failed"
    cause_class: str  # "" | "config" | "auth" | "bug" | "signal" | "hang" | "oom" | "disk" | "env" | "network" | ...
    what: str
    why: str
    fix: str
    where: str
    newest_complete: int  # 0 = none
    cause_id: str = ""  # the id of the matching signature or alarm: "VLLM003", "gpu_lost"
    retry: str = ""  # the signature's retry advice: "no" | "after_fix" | "yes"; "" = from the class


@dataclass(frozen=True, slots=True)
class StopAsked:
    kind: ClassVar[str] = "stop_asked"
    by: str  # "SIGINT", "SIGTERM", "prime-train stop", or the alarm that pauses the run
    saves: bool = True  # False: a save would fail or do harm, so the trainer ends without one


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A file among the requests to the supervisor is none. It stays, and has no effect."""

    kind: ClassVar[str] = "request_refused"
    file: str  # below attempts/
    reason: str


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """The answer to a request with an id. The same id is never acted on again."""

    kind: ClassVar[str] = "request_answered"
    request_id: str
    request: str  # its kind: "settings_requested", "command_requested", "stop_requested"
    outcome: str  # "accepted", "done", "refused"; "failed" = it was accepted, and could not be done
    what: str
    why: str = ""
    fix: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class SettingsAccepted:
    """A change of settings is checked and its plan is written. The trainer applies it at a later step."""

    kind: ClassVar[str] = "settings_accepted"
    version: int
    values: tuple[str, ...]  # "optim.lr = 0.0002"
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class CommandAccepted:
    """A person's command that the supervisor carries out. RequestAnswered with the same id has the end."""

    kind: ClassVar[str] = "command_accepted"
    request_id: str
    command: str  # "pause", "resume", "checkpoint", "go_back", "drain", "drain_replica", "test", "return", "accept"
    by: str  # USER@HOST
    # "go_back": to the checkpoint of this step. "checkpoint": one after this step is the answer. "accept": the proposal
    # with this number.
    step: int = 0
    why: str = ""
    gpus: tuple[str, ...] = ()  # UUIDs; "cpu" is the stand-in of a machine without GPUs; "machine-1" has all of its own


@dataclass(frozen=True, slots=True)
class CheckpointPinned:
    """A person's command set or took away the mark that keeps a checkpoint from deletions."""

    kind: ClassVar[str] = "checkpoint_pinned"
    step: int
    pinned: bool
    by: str


@dataclass(frozen=True, slots=True)
class ClockJumped:
    """The wall clock moved against the monotonic clock: it was set, or the machine slept. Not counted as silence."""

    kind: ClassVar[str] = "clock_jumped"
    jump_s: float


@dataclass(frozen=True, slots=True)
class EventsDamaged:
    """A supervisor that starts could not use a part of the earlier events. The run goes on from the rest."""

    kind: ClassVar[str] = "events_damaged"
    what: str  # file, and counts of records


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The supervisor's last event. `state` is "finished", "stopped" or "failed"."""

    kind: ClassVar[str] = "run_closed"
    state: str
    exit_code: int
    reason: str


SupervisorEvent = (
    RunOpened
    | LaunchAsked
    | ChildStarted
    | HangFound
    | SignalSent
    | AttemptEnded
    | StopAsked
    | RequestRefused
    | RequestAnswered
    | SettingsAccepted
    | CommandAccepted
    | CheckpointPinned
    | ClockJumped
    | EventsDamaged
    | RunClosed
)
