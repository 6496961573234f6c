"""The events of the watches and the other services of a supervisor, one frozen value each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


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
    watch: str  # "gpu", "engine", "hang", "disk", "host", "preemption", "cost", "metrics", "straggler", "machines"
    name: str  # "gpu_lost"
    subject: str  # "GPU 1"
    answer: str  # the response: "note", "alert", "test", "drain", "pause", "restart", "leave"
    cause_class: str
    what: str
    why: str
    fix: str
    where: str
    step: int
    deadline_s: float = 0.0  # of "leave": when the machine goes away, in seconds since the epoch
    savable: bool = True  # False: a save is not possible, so a pause ends the trainer without one


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
class CheckpointBackedUp:
    """A complete checkpoint is in the bucket. `problem` is the reason if it could not be copied, else ""."""

    kind: ClassVar[str] = "checkpoint_backed_up"
    step: int  # 0 = the bucket failed before a checkpoint was chosen
    size_bytes: int
    stored_bytes: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BackupPruned:
    """A copy in the bucket that the retention does not keep was deleted."""

    kind: ClassVar[str] = "backup_pruned"
    step: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class BackupFlushBegun:
    """The run is over, and `run` waits until its newest checkpoint is in the bucket."""

    kind: ClassVar[str] = "backup_flush_begun"
    step: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class CheckpointRestored:
    """A checkpoint came from the bucket before an attempt, because the disk had none as new."""

    kind: ClassVar[str] = "checkpoint_restored"
    step: int
    size_bytes: int
    seconds: float
    where: str  # the address of the bucket


@dataclass(frozen=True, slots=True)
class GpuLeftOut:
    """Two attempts failed on this GPU, or a person drained it: the next attempts do not use it."""

    kind: ClassVar[str] = "gpu_left_out"
    gpu: str  # its UUID, or the name of a machine with all of its GPUs: "machine-1"
    reason: str


@dataclass(frozen=True, slots=True)
class GpuReturned:
    """A person gave the GPU back to the run: the next attempt may use it, and its failures are forgotten."""

    kind: ClassVar[str] = "gpu_returned"
    gpu: str  # its UUID
    reason: str


@dataclass(frozen=True, slots=True)
class GpuTestBegun:
    kind: ClassVar[str] = "gpu_test_begun"
    request_id: str  # of the command
    gpus: tuple[str, ...]  # UUIDs; "cpu" is the stand-in of a machine without GPUs


@dataclass(frozen=True, slots=True)
class GpuTested:
    """The product, the copies and the all-reduce of one GPU were compared with known results."""

    kind: ClassVar[str] = "gpu_tested"
    request_id: str
    gpu: str
    passed: bool
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MachineRefused:
    """A rented machine has a GPU that the run has condemned: it is given back, and another one is rented."""

    kind: ClassVar[str] = "machine_refused"
    machine: str  # its host name
    gpus: tuple[str, ...]  # UUIDs of the condemned ones
    number: int  # machines that were refused since the latest attempt, with this one


@dataclass(frozen=True, slots=True)
class CheckpointSetAside:
    """A checkpoint that the trainer would have loaded is not whole: it was renamed, or the tracker rewritten."""

    kind: ClassVar[str] = "checkpoint_set_aside"
    attempt: int
    step: int  # -1: not known
    problem: str
    path: str
    to: str  # where it is now; the tracker's file
    tracked: int | None = None  # the step that the tracker names now; None = it was renamed


@dataclass(frozen=True, slots=True)
class BatchShrunk:
    """The next attempts use a smaller micro-batch with the same global batch, because memory ran out."""

    kind: ClassVar[str] = "batch_shrunk"
    attempt: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class InstabilityFound:
    """The loss or the gradient norm left its range. The supervisor proposes a change, or makes it itself."""

    kind: ClassVar[str] = "instability_found"
    attempt: int
    number: int  # from 1
    step: int  # the first one beyond the range
    what: str
    values: tuple[str, ...]  # "optim.lr = 0.0001"; empty where no change is known to help
    go_back_to: int  # a checkpoint's step; 0 = the run goes on where it is
    auto: bool
    why: str = ""  # the change is only proposed, or there is none


WatchEvent = (
    InstabilityFound
    | ServiceReady
    | AlarmRaised
    | AlarmCleared
    | AlertSent
    | LogNoticed
    | ActivitySeen
    | EvidenceKept
    | SpaceFreed
    | CheckpointPacked
    | CheckpointBackedUp
    | BackupPruned
    | BackupFlushBegun
    | CheckpointRestored
    | GpuLeftOut
    | GpuReturned
    | GpuTestBegun
    | GpuTested
    | MachineRefused
    | CheckpointSetAside
    | BatchShrunk
)
