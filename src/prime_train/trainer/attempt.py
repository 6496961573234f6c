"""Names the attempt this process belongs to: what is trained, where it is written, from where it goes on."""

from __future__ import annotations

from dataclasses import dataclass

from prime_train.events import Event, EventLog
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Attempt:
    run: RunSpec
    run_dir: RunDir
    number: int
    resume_step: int  # 0 = from the beginning
    events: EventLog
    rank: int

    def tell(self, event: Event) -> None:
        """Write an event that speaks for all ranks: only rank 0 does."""
        if self.rank == 0:
            self.events.append(event)
