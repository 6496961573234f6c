"""What was found while a run was on, and what was done about it, one frozen value each. The supervisor writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ServiceReady:
    """A service of the attempt answers: its health, and a request of the kind it is there for."""

    kind: ClassVar[str] = "service_ready"
    attempt: int
    role: str
    url: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class AlarmRaised:
    """A watch found something wrong. It stands until AlarmCleared, or until the attempt has ended."""

    kind: ClassVar[str] = "alarm_raised"
    attempt: int  # 0 = raised while none lived
    watch: str  # "gpu", "engine", "hang", "disk", "host"
    name: str  # "gpu_lost"
    subject: str  # "GPU 1"
    answer: str  # what follows: "note", "alert", "pause", "restart"
    cause_class: str
    what: str
    why: str
    fix: str
    where: str
    step: int


@dataclass(frozen=True, slots=True)
class AlarmCleared:
    kind: ClassVar[str] = "alarm_cleared"
    attempt: int
    watch: str
    name: str
    subject: str


@dataclass(frozen=True, slots=True)
class AlertSent:
    """An alarm or an end was told outside the run. `failed` says why it did not get there, empty where it did."""

    kind: ClassVar[str] = "alert_sent"
    channel: str  # "command", "webhook"
    about: str
    failed: str = ""


@dataclass(frozen=True, slots=True)
class LogNoticed:
    """A line of a log that ends nothing and explains a slow or stuck run. Told once for each kind and attempt."""

    kind: ClassVar[str] = "log_noticed"
    attempt: int
    signature: str
    what: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ActivitySeen:
    """What the processes of a silent attempt were doing. `until_s`: so long is it given before it counts as hung."""

    kind: ClassVar[str] = "activity_seen"
    attempt: int
    what: str
    until_s: float


@dataclass(frozen=True, slots=True)
class EvidenceKept:
    """What was found out about a process before it was ended: stacks of every rank, GPUs, the ends of the logs."""

    kind: ClassVar[str] = "evidence_kept"
    attempt: int
    folder: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpaceFreed:
    """Something of the run that nothing needs any more was deleted, or would have been: `failed` says why not."""

    kind: ClassVar[str] = "space_freed"
    attempt: int
    path: str
    size_bytes: int
    reason: str
    failed: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointPacked:
    """A superseded checkpoint was packed without loss, beside the run; `problem` says why not, empty where it was."""

    kind: ClassVar[str] = "checkpoint_packed"
    step: int
    size_bytes: int
    stored_bytes: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GpuLeftOut:
    """A GPU on which two attempts failed is not used again by this run."""

    kind: ClassVar[str] = "gpu_left_out"
    gpu: str  # its UUID
    reason: str


@dataclass(frozen=True, slots=True)
class BatchShrunk:
    """The next attempts take a smaller micro-batch at the same global batch, because memory ran out."""

    kind: ClassVar[str] = "batch_shrunk"
    attempt: int
    micro_batch: int
