"""Reads the status of a run from its events, processes and disk, during the run and after it. Writes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal, NamedTuple

from prime_train.checkpoints.step_folders import find_newest_complete
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.core.units import GIB
from prime_train.events.record import Damage
from prime_train.programs import recorded
from prime_train.supervise.core.journal import read_state
from prime_train.supervise.core.state import AttemptState, State
from prime_train.supervise.processes.lock import find_holder


class ChildAlive(NamedTuple):
    """A process of the live attempt. `alive` is None if it runs on another machine."""

    role: str
    pid: int
    alive: bool | None


class Status(NamedTuple):
    """The status of one run at `now_s`. `supervised`: a supervisor holds the run's lock."""

    path: Path
    state: State
    supervised: bool
    children: tuple[ChildAlive, ...]
    newest_complete: int | None
    now_s: float
    free_gib: float | None = None
    is_stopped: bool = False  # Ctrl-Z or SIGSTOP stopped the supervisor, so nothing supervises the run
    scheduled: Literal["", "queued", "starting"] = ""  # a scheduler will start the run, or its job has begun
    place: str = ""  # in the queue of the scheduler
    damage: tuple[Damage, ...] = ()  # events that are not used

    @property
    def name(self) -> str:
        return self.state.run or self.path.name

    @property
    def word(self) -> str:
        """The state of the run; "died" if it was not closed and no supervisor is alive."""
        if self.scheduled:
            return self.scheduled
        if self.state.closed or self.supervised:
            return self.state.state
        return "died"

    @property
    def resumable(self) -> bool:
        """Whether `prime-train run` with the same config continues the run without a repair."""
        return self.word not in ("finished", "failed")

    @property
    def step_s(self) -> float | None:
        """Seconds per step of the live attempt, evaluations and saves included; None before its second Progress."""
        first = self.state.live.first_progress if self.state.live else None
        if first is None or self.state.progress_s is None:
            return None
        steps = self.state.step - getattr(first.event, "step", self.state.step)
        return (self.state.progress_s - first.time_s) / steps if steps > 0 else None

    @property
    def left_s(self) -> float | None:
        """Seconds to the last step at the pace of the live attempt; None if it makes no steps."""
        is_over = self.state.closed or not self.supervised
        if self.step_s is None or self.state.is_endless or is_over:
            return None
        return max(0, self.state.max_steps - self.state.step) * self.step_s

    @property
    def last_event_age_s(self) -> float | None:
        """Seconds since the last event that has a text."""
        return None if self.state.last_event_s is None else max(0.0, self.now_s - self.state.last_event_s)

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last sign of life; None before the first one."""
        last_s = self.state.live.last_sign_s if self.state.live else self.state.progress_s
        last_s = self.state.last_event_s if last_s is None else last_s
        return None if last_s is None else max(0.0, self.now_s - last_s)

    @property
    def failure(self) -> AttemptState | None:
        """The latest attempt that failed."""
        return next((attempt for attempt in reversed(self.state.attempts) if attempt.outcome == "failed"), None)


def supervised_status(state: State, now_s: float) -> Status:
    """The status of a run that this process supervises, from its state alone."""
    newest = state.newest_complete or None
    return Status(Path(), state, supervised=True, children=(), newest_complete=newest, now_s=now_s)


def fold_events(run_dir: RunDir) -> State:
    """The state of a run from all its events up to now."""
    return read_state(run_dir).state


def read_status(run_dir: RunDir, now_s: float) -> Status:
    """The status of a run. Reads events, /proc, the lock and the checkpoint folders."""
    state, damage = read_state(run_dir)
    held_by = find_holder(run_dir)
    here = held_by is None or held_by.here
    living = state.live.children if state.live else ()
    program, run = recorded(run_dir, strict=False)
    places = program.places(run, run_dir)
    newest = find_newest_complete(places.checkpoints, places.layout)
    try:
        free_gib: float | None = shutil.disk_usage(run_dir.path).free / GIB
    except OSError:
        free_gib = None
    return Status(
        path=run_dir.path,
        state=state,
        supervised=held_by is not None,
        children=tuple(
            ChildAlive(c.role, c.pid, Identity(c.pid, c.start_ticks).alive if here else None) for c in living
        ),
        newest_complete=newest.step if newest else None,
        free_gib=free_gib,
        now_s=now_s,
        is_stopped=held_by is not None and held_by.here and held_by.identity.is_stopped,
        damage=damage,
    )
