"""The attempt of this process: its run and its event log, and the requests that stop it. Saves nothing."""

from __future__ import annotations

from dataclasses import dataclass

from prime_train.core.rundir import RunDir
from prime_train.events import Event, EventLog
from prime_train.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Attempt:
    run: RunSpec
    run_dir: RunDir
    number: int
    resume_step: int  # 0 = no checkpoint
    events: EventLog
    rank: int

    def emit(self, event: Event) -> None:
        """Write an event that holds for all ranks; only rank 0 writes it."""
        if self.rank == 0:
            self.events.append(event)
