"""What may happen in a run, one frozen value each. Reads and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# --- written by the supervisor -------------------------------------------------------------------


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
    cause_class: str  # "" | "config" | "bug" | "signal" | "hang" | "oom" | "disk" | "env" | "unknown"
    what: str
    why: str
    fix: str
    where: str
    newest_complete: int  # 0 = none


@dataclass(frozen=True, slots=True)
class StopAsked:
    kind: ClassVar[str] = "stop_asked"
    by: str  # "SIGINT", "SIGTERM"


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


# --- written by the trainer ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainerStarted:
    kind: ClassVar[str] = "trainer_started"
    attempt: int
    pid: int
    rank: int
    world_size: int
    device: str
    precision: str
    params: int
    vocab_size: int
    resume_step: int


@dataclass(frozen=True, slots=True)
class Phase:
    """The trainer entered a phase: "setup", "tokenizer", "data", "train", "evaluate", "checkpoint", "export"."""

    kind: ClassVar[str] = "phase"
    attempt: int
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Optimizer steps were taken. Written at most a few times a second; metrics.jsonl has every step."""

    kind: ClassVar[str] = "progress"
    attempt: int
    step: int
    loss: float
    tokens_per_s: float
    tokens_seen: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    kind: ClassVar[str] = "evaluated"
    attempt: int
    step: int
    loss: float  # mean cross-entropy per held-out token, nats
    tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    kind: ClassVar[str] = "sampled"
    attempt: int
    step: int
    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class CheckpointStarted:
    kind: ClassVar[str] = "checkpoint_started"
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The marker of this checkpoint is on disk: it is complete."""

    kind: ClassVar[str] = "checkpoint_saved"
    attempt: int
    step: int
    size_bytes: int
    stall_s: float  # what the training loop waited for it, staging waits included
    write_s: float  # from start to marker


@dataclass(frozen=True, slots=True)
class CheckpointDeleted:
    kind: ClassVar[str] = "checkpoint_deleted"
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointUnreadable:
    """A checkpoint with a marker could not be loaded; the next attempt takes the one before."""

    kind: ClassVar[str] = "checkpoint_unreadable"
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class TrainerFailed:
    """The trainer's own account of its end. `cause_class` "config", "disk" and "env" are not retried."""

    kind: ClassVar[str] = "trainer_failed"
    attempt: int
    rank: int
    cause_class: str
    what: str
    why: str
    fix: str
    where: str


@dataclass(frozen=True, slots=True)
class TrainerStopped:
    """Ended on request after a complete checkpoint at `step`."""

    kind: ClassVar[str] = "trainer_stopped"
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class TrainerFinished:
    kind: ClassVar[str] = "trainer_finished"
    attempt: int
    step: int
    loss: float
    final: str  # path of the last checkpoint or the exported folder


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """A line of a later version: kept, shown by name, folded into nothing."""

    kind: ClassVar[str] = "unrecognised"
    name: str


Event = (
    RunOpened
    | LaunchAsked
    | ChildStarted
    | HangFound
    | SignalSent
    | AttemptEnded
    | StopAsked
    | ClockJumped
    | RunClosed
    | TrainerStarted
    | Phase
    | Progress
    | Evaluated
    | Sampled
    | CheckpointStarted
    | CheckpointSaved
    | CheckpointDeleted
    | CheckpointUnreadable
    | TrainerFailed
    | TrainerStopped
    | TrainerFinished
    | Unrecognised
)
