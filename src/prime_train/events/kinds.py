"""The union of all events of a run. Reads and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prime_train.events.supervisors import (
    AttemptEnded,
    ChildStarted,
    ClockJumped,
    HangFound,
    LaunchAsked,
    RunClosed,
    RunOpened,
    SignalSent,
    StopAsked,
)
from prime_train.events.trainers import (
    CheckpointDeleted,
    CheckpointSaved,
    CheckpointStarted,
    CheckpointUnreadable,
    Evaluated,
    Phase,
    Progress,
    Sampled,
    TrainerFailed,
    TrainerFinished,
    TrainerStarted,
    TrainerStopped,
)
from prime_train.events.watched import (
    ActivitySeen,
    AlarmCleared,
    AlarmRaised,
    AlertSent,
    BatchShrunk,
    CheckpointPacked,
    EvidenceKept,
    GpuLeftOut,
    LogNoticed,
    ServiceReady,
    SpaceFreed,
)


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
