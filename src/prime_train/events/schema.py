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


@dataclass(frozen=True, slots=True)
class LaunchAsked:
    """Written before the spawn. Without a ChildStarted, the attempt may or may not have started."""

    kind: ClassVar[str] = "launch_asked"
    attempt: int
    resume_step: int  # 0 = from the beginning
    rejected: tuple[str, ...] = ()  # newer checkpoints that were not usable: "step_40: model.distcp has 10 of 40 bytes"
    roles: tuple[str, ...] = ("trainer",)  # in start order; each role waits for the services before it
    services: tuple[str, ...] = ()  # the roles that are servers, and are ready when they answer


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
    signal: str  # "stop_requested" (the file), "SIGTERM", "SIGKILL"
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
    by: str  # "SIGINT", "SIGTERM", or the alarm that pauses the run
    saves: bool = True  # False: a save would fail or do harm, so the trainer ends without one


@dataclass(frozen=True, slots=True)
class ClockJumped:
    """The wall clock moved against the monotonic clock: it was set, or the machine slept. Not counted as silence."""

    kind: ClassVar[str] = "clock_jumped"
    jump_s: float


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The supervisor's last event. `state` is "finished", "stopped" or "failed"."""

    kind: ClassVar[str] = "run_closed"
    state: str
    exit_code: int
    reason: str


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
    """The trainer made optimizer steps. Written at most a few times per second; metrics.jsonl has every step."""

    kind: ClassVar[str] = "progress"
    attempt: int
    step: int
    loss: float
    tokens_per_s: float
    tokens_seen: int
    reward: float | None = None  # mean over the rollouts of the step; None if the run has no rewards


@dataclass(frozen=True, slots=True)
class Evaluated:
    kind: ClassVar[str] = "evaluated"
    attempt: int
    step: int
    loss: float  # mean cross-entropy per held-out token, nats
    tokens: int


@dataclass(frozen=True, slots=True)
class TasksEvaluated:
    """The model answered held-out tasks of one environment."""

    kind: ClassVar[str] = "tasks_evaluated"
    attempt: int
    step: int
    environment: str  # "reverse-text"
    reward: float  # mean over the tasks that were scored
    tasks: int
    failed: int  # tasks whose environment failed; they have no reward
    answer_tokens: float  # mean per task


@dataclass(frozen=True, slots=True)
class RolloutsFailed:
    """Rollouts failed in an environment since the previous such event; they are not trained on."""

    kind: ClassVar[str] = "rollouts_failed"
    attempt: int
    step: int
    environment: str
    failed: int
    asked: int
    reason: str  # the first error, one line
    traceback: str = ""  # of the first failure of the attempt, else ""


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
    stall_s: float  # how long the training loop waited for it, staging included
    write_s: float  # from start to marker


@dataclass(frozen=True, slots=True)
class CheckpointDeleted:
    kind: ClassVar[str] = "checkpoint_deleted"
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointUnreadable:
    """A checkpoint with a marker could not be loaded; the next attempt loads the one before it."""

    kind: ClassVar[str] = "checkpoint_unreadable"
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class TrainerFailed:
    """The trainer's report of its own failure. `cause_class` "config", "disk" and "env" are not retried."""

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
    """The trainer ended on request, with a complete checkpoint at `step`."""

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
class ServiceReady:
    """A service of the attempt is ready: its health check and a test request succeeded."""

    kind: ClassVar[str] = "service_ready"
    attempt: int
    role: str
    url: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class AlarmRaised:
    """A watch found a problem. The alarm is active until AlarmCleared, or until the attempt ends."""

    kind: ClassVar[str] = "alarm_raised"
    attempt: int  # 0 = raised between attempts
    watch: str  # "gpu", "engine", "hang", "disk", "host", "preemption"
    name: str  # "gpu_lost"
    subject: str  # "GPU 1"
    answer: str  # the response: "note", "alert", "pause", "restart", "leave"
    cause_class: str
    what: str
    why: str
    fix: str
    where: str
    step: int
    deadline_s: float = 0.0  # of "leave": when the machine goes away, in seconds since the epoch


@dataclass(frozen=True, slots=True)
class AlarmCleared:
    kind: ClassVar[str] = "alarm_cleared"
    attempt: int
    watch: str
    name: str
    subject: str


@dataclass(frozen=True, slots=True)
class AlertSent:
    """An alert about an alarm or an end was sent. `failed` is the reason if it could not be delivered, else ""."""

    kind: ClassVar[str] = "alert_sent"
    channel: str  # "command", "webhook"
    about: str
    failed: str = ""


@dataclass(frozen=True, slots=True)
class LogNoticed:
    """A log line that explains a slow or stuck run without ending it. Written once per signature and attempt."""

    kind: ClassVar[str] = "log_noticed"
    attempt: int
    signature: str
    what: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ActivitySeen:
    """The activity of the processes of a silent attempt, which does not count as hung before the time `until_s`."""

    kind: ClassVar[str] = "activity_seen"
    attempt: int
    what: str
    until_s: float


@dataclass(frozen=True, slots=True)
class EvidenceKept:
    """Evidence was saved before processes were ended: stacks of every rank, GPUs, the ends of the logs."""

    kind: ClassVar[str] = "evidence_kept"
    attempt: int
    folder: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpaceFreed:
    """A part of the run that is no longer needed was deleted. `failed` is the reason if it could not be, else ""."""

    kind: ClassVar[str] = "space_freed"
    attempt: int
    path: str
    size_bytes: int
    reason: str
    failed: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointPacked:
    """A superseded checkpoint was packed without loss. `problem` is the reason if it could not be, else ""."""

    kind: ClassVar[str] = "checkpoint_packed"
    step: int
    size_bytes: int
    stored_bytes: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GpuLeftOut:
    """Two attempts failed on this GPU, so this run does not use it again."""

    kind: ClassVar[str] = "gpu_left_out"
    gpu: str  # its UUID
    reason: str


@dataclass(frozen=True, slots=True)
class BatchShrunk:
    """The next attempts use a smaller micro-batch with the same global batch, because memory ran out."""

    kind: ClassVar[str] = "batch_shrunk"
    attempt: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """An event of a later version: kept and shown by name, without effect on the state."""

    kind: ClassVar[str] = "unrecognised"
    name: str


SupervisorEvent = (
    RunOpened | LaunchAsked | ChildStarted | HangFound | SignalSent | AttemptEnded | StopAsked | ClockJumped | RunClosed
)
WatchEvent = (
    ServiceReady
    | AlarmRaised
    | AlarmCleared
    | AlertSent
    | LogNoticed
    | ActivitySeen
    | EvidenceKept
    | SpaceFreed
    | CheckpointPacked
    | GpuLeftOut
    | BatchShrunk
)
TrainerEvent = (
    TrainerStarted
    | Phase
    | Progress
    | Evaluated
    | TasksEvaluated
    | RolloutsFailed
    | Sampled
    | CheckpointStarted
    | CheckpointSaved
    | CheckpointDeleted
    | CheckpointUnreadable
    | TrainerFailed
    | TrainerStopped
    | TrainerFinished
)
Event = SupervisorEvent | WatchEvent | TrainerEvent | Unrecognised
