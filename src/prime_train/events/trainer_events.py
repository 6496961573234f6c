"""The events of a trainer, one frozen value each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


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
    """The trainer entered a phase: "setup", "tokenizer", "data", "train", "evaluate", "checkpoint", "export".

    `limit_s`: how long it may take; 0 where only the config has a limit.
    """

    kind: ClassVar[str] = "phase"
    attempt: int
    name: str
    detail: str = ""
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The trainer made optimizer steps. Written at most a few times per second; metrics.jsonl has every step.

    A value that another trainer does not report is None.
    """

    kind: ClassVar[str] = "progress"
    attempt: int
    step: int
    loss: float | None
    tokens_per_s: float | None
    tokens_seen: int
    reward: float | None = None  # mean over the rollouts of the step; None if the run has no rewards
    unit: str = "tokens"  # of what the loss counts, and so of tokens_per_s and tokens_seen
    total: int | None = None  # the last step, where only the trainer itself knows it
    grad_norm: float | None = None  # before clipping


@dataclass(frozen=True, slots=True)
class StepSkipped:
    """A step did not change the weights, because its loss or gradient norm was not usable."""

    kind: ClassVar[str] = "step_skipped"
    attempt: int
    step: int
    loss: float
    grad_norm: float
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    kind: ClassVar[str] = "evaluated"
    attempt: int
    step: int
    loss: float  # mean cross-entropy per held-out token, nats
    tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One value of an evaluation: of a set of text, or of a benchmark."""

    kind: ClassVar[str] = "measured"
    attempt: int
    step: int
    name: str  # of the set or the benchmark: "wiki", "hellaswag"
    metric: str  # "loss" in nats per token, "bits_per_byte", "acc_norm"
    value: float  # finite
    count: int  # tokens, bytes or examples that the value is a mean over


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
class ClipsBroken:
    """Clips could not be decoded since the attempt began; others took their places."""

    kind: ClassVar[str] = "clips_broken"
    attempt: int
    step: int
    broken: int
    read: int  # clips, on all ranks
    named: tuple[str, ...]  # a few that this rank read: "train.arrow row 17: its audio is null"


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
class StopListened:
    """The trainer looks for the file of a stop request, so it needs no signal."""

    kind: ClassVar[str] = "stop_listened"
    attempt: int


@dataclass(frozen=True, slots=True)
class SaveListened:
    """The trainer looks for requests to save a checkpoint and go on."""

    kind: ClassVar[str] = "save_listened"
    attempt: int


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
    note: str = ""  # what is not known about the end


@dataclass(frozen=True, slots=True)
class SettingsApplied:
    """A change of settings takes effect at `step` on every rank. Written before any rank reaches that step.

    Written again by an attempt that begins after it.
    """

    kind: ClassVar[str] = "settings_applied"
    attempt: int
    version: int
    step: int  # the first one with the values
    values: tuple[str, ...]  # "optim.lr = 0.0002"
    max_steps: int  # of the run from then on


@dataclass(frozen=True, slots=True)
class ReplicasJoined:
    """The replicas that take part in the steps after `step`, by their numbers: one was lost, or came back."""

    kind: ClassVar[str] = "replicas_joined"
    attempt: int
    step: int
    members: tuple[str, ...]
    replicas: int  # in the config


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica ended, or was killed because it hung. The others train on; it starts again after `restart_s`."""

    kind: ClassVar[str] = "replica_lost"
    attempt: int
    replica: int
    step: int  # that it committed last
    what: str
    restart_s: float
    gpus: tuple[str, ...] = ()  # UUIDs that it leaves, because they are drained: then it does not start again


@dataclass(frozen=True, slots=True)
class LighthouseLost:
    """The process that knows which replicas live has ended; another one has been started."""

    kind: ClassVar[str] = "lighthouse_lost"
    attempt: int
    what: str


TrainerEvent = (
    TrainerStarted
    | Phase
    | Progress
    | StepSkipped
    | Evaluated
    | Measured
    | TasksEvaluated
    | RolloutsFailed
    | ClipsBroken
    | Sampled
    | CheckpointStarted
    | CheckpointSaved
    | CheckpointDeleted
    | CheckpointUnreadable
    | StopListened
    | SettingsApplied
    | SaveListened
    | ReplicasJoined
    | ReplicaLost
    | LighthouseLost
    | TrainerFailed
    | TrainerStopped
    | TrainerFinished
)
