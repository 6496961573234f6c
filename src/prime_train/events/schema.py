"""All kinds of events: the supervisor's, those of its watches, and the trainer's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prime_train.events.supervisor_events import *  # noqa: F403
from prime_train.events.supervisor_events import SupervisorEvent
from prime_train.events.trainer_events import *  # noqa: F403
from prime_train.events.trainer_events import TrainerEvent
from prime_train.events.watch_events import *  # noqa: F403
from prime_train.events.watch_events import WatchEvent


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """An event of a later version: kept and shown by name, without effect on the state."""

    kind: ClassVar[str] = "unrecognised"
    name: str


Event = SupervisorEvent | WatchEvent | TrainerEvent | Unrecognised
