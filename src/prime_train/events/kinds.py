"""Everything that may happen in a run. Reads and writes nothing."""

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

__all__ = [
    "ActivitySeen",
    "AlarmCleared",
    "AlarmRaised",
    "AlertSent",
    "AttemptEnded",
    "BatchShrunk",
    "CheckpointDeleted",
    "CheckpointPacked",
    "CheckpointSaved",
    "CheckpointStarted",
    "CheckpointUnreadable",
    "ChildStarted",
    "ClockJumped",
    "Evaluated",
    "Event",
    "EvidenceKept",
    "GpuLeftOut",
    "HangFound",
    "LaunchAsked",
    "LogNoticed",
    "Phase",
    "Progress",
    "RunClosed",
    "RunOpened",
    "Sampled",
    "ServiceReady",
    "SignalSent",
    "SpaceFreed",
    "StopAsked",
    "Supervisors",
    "TrainerFailed",
    "TrainerFinished",
    "TrainerStarted",
    "TrainerStopped",
    "Trainers",
    "Unrecognised",
    "Watched",
]


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """A line of a later version: kept, shown by name, folded into nothing."""

    kind: ClassVar[str] = "unrecognised"
    name: str


Supervisors = (
    RunOpened | LaunchAsked | ChildStarted | HangFound | SignalSent | AttemptEnded | StopAsked | ClockJumped | RunClosed
)
Watched = (
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
Trainers = (
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
Event = Supervisors | Watched | Trainers | Unrecognised
