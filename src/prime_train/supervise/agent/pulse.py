"""What a heartbeat has: step, time of the latest progress, attempt and state of a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prime_train.events import AttemptEnded, LaunchAsked, Phase, Progress, Record, RunClosed, RunOpened


@dataclass(frozen=True, slots=True)
class Pulse:
    """`state`: "starting", the phase of the trainer, "restarting", or the end that the supervisor or the agent saw."""

    state: str = "starting"
    attempt: int = 0
    step: int = 0
    progress_s: float | None = None
    exit_code: int | None = None  # of a run that is closed

    def after(self, record: Record) -> Pulse:
        match record.event:
            case RunOpened():
                return replace(self, state="starting", exit_code=None)
            case LaunchAsked(attempt=attempt):
                return replace(self, state="starting", attempt=attempt)
            case Phase(name=name, attempt=attempt):
                return replace(self, state=name, attempt=attempt)
            case Progress(step=step, attempt=attempt):
                return replace(self, state="train", step=step, attempt=attempt, progress_s=record.time_s)
            case AttemptEnded(outcome="failed"):
                return replace(self, state="restarting")
            case RunClosed(state=state, exit_code=code):
                return replace(self, state=state, exit_code=code)
        return self
