"""Background services of the supervisor: watches, log follower, alerts, packing. Decides nothing.

Each receives what happens and returns events, which the loop writes. None may block the loop: what takes time is done
in a thread or a child, and comes back through the inbox.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.diagnose.cause import Cause
from prime_train.events import (
    AlarmCleared,
    AlarmRaised,
    AlertSent,
    CheckpointPacked,
    Event,
    EvidenceKept,
    LogNoticed,
    Record,
    ServiceReady,
    SpaceFreed,
)
from prime_train.spec import RunSpec
from prime_train.supervise import service
from prime_train.supervise.alert_text import alert
from prime_train.supervise.alerts import Alerts
from prime_train.supervise.launch.environment import placed
from prime_train.supervise.launch.launch import Launch, Variable
from prime_train.supervise.launch.program import Observer, Program
from prime_train.supervise.log_follower import Ear
from prime_train.supervise.packing import Packing
from prime_train.supervise.state import State
from prime_train.supervise.watch_runner import Watching
from prime_train.supervise.watches.disk.watch import Freed
from prime_train.supervise.watches.hang.activity import Activity
from prime_train.supervise.watches.hang.hang_check import Suspicion
from prime_train.supervise.watches.watch import Watches

_MEMORY_HELD = ("gpu", "memory_held", "")  # an alarm of no watch
_FIRST_LOOK_S = 10.0  # for the driver to say which GPUs there are
_LAST_ANSWER_S = 15.0  # for a driver that is asked just before GPU memory is waited for no more


class Companions:
    """All of the services, by the moments of a supervision at which they act."""

    def __init__(
        self,
        run: RunSpec,
        run_dir: RunDir,
        program: Program,
        watches: Watches,
        inbox: SimpleQueue[object],
        hidden: Sequence[str],
    ) -> None:
        self._run = run
        self._run_dir = run_dir
        self._program = program
        self._inbox = inbox
        self._roles = program.roles(run)
        self._gpu, self._disk = watches.gpu, watches.disk
        alerts = run.prime_train.alerts
        self._alerts = Alerts(alerts.command, alerts.webhook_env, os.environ)
        self._packing = Packing(run_dir, run.prime_train.backup.compress)
        self._observer: Observer | None = None
        self._watching = Watching(tuple(watches), run_dir)
        self._suspicion = Suspicion(run_dir, inbox, hidden)
        self._ear: Ear | None = None
        self._waiting: list[service.Waiting] = []
        self._held_before: dict[str, int] = {}
        self._memory_until_s = 0.0  # waited for so long, on the monotonic clock
        self._first_look_until_s = 0.0  # on the monotonic clock
        self._has_begun = False  # what happened before is told already

    # --- a supervision ---

    def begin(self) -> None:
        self._has_begun = True
        if any(role.serves for role in self._roles):
            self._held_before = service.used_bytes()  # by others: what a dead supervisor left has ended by here
        self._first_look_until_s = time.monotonic() + _FIRST_LOOK_S
        self._watching.begin()

    def turn(self, state: State, now_s: float) -> Iterator[Event]:
        """What is new, at each turn of the loop."""
        yield from self._watching.look(state, now_s)
        yield from self._alerts.results()
        self._packing.consider(state)
        for packed in self._packing.results():
            told = (packed.step, packed.size_bytes, packed.stored_bytes, round(packed.seconds, 3), packed.problem)
            yield CheckpointPacked(*told)
        for freed in self._disk.freed() if self._disk is not None else ():
            yield _freed(freed, state.attempt_number)

    def hear(self, state: State, record: Record) -> None:
        """What was written, by whomever; `state` as it is after it."""
        told = alert(record.event, state) if self._has_begun else None
        if told is not None:
            self._alerts.send(told.about, told.document, at_once=told.is_end)

    def told(self, state: State, message: object) -> Iterator[Event]:
        """What follows from a message that one of these has put into the inbox."""
        number = state.live.number if state.live else 0
        match message:
            case EvidenceKept(attempt=attempt) | LogNoticed(attempt=attempt) if attempt == number:
                yield message
            case service.Answers(attempt=attempt, role=role, url=url, waited_s=waited_s) if attempt == number:
                yield ServiceReady(attempt, role, url, round(waited_s, 3))
            case service.NeverReady(attempt=attempt) as never if attempt == number:
                yield _never_ready(never, state.step)
            case service.MemoryBack(held=held):
                self._memory_until_s = 0.0
                if held:
                    yield _still_held(held, number, state.step)
                elif any(standing.key == _MEMORY_HELD for standing in state.alarms):
                    yield AlarmCleared(number, *_MEMORY_HELD)

    def processes(self) -> tuple[Identity, ...]:
        """Processes that belong to no attempt."""
        return (
            *self._watching.processes(),
            *self._suspicion.processes(),
            *self._alerts.processes(),
            *self._packing.processes(),
        )

    def end(self) -> list[AlertSent]:
        """Stop everything; what became of the last alerts."""
        self.attempt_ended()
        self._packing.end()
        self._watching.end()
        return self._alerts.close()

    # --- an attempt ---

    def may_launch(self, state: State) -> bool:
        """The GPU memory of the service before is given back, and which GPUs there are is known where two roles share
        them out, or some are left out."""
        looks = (len(self._roles) > 1 or bool(state.left_out)) and self._gpu is not None and not self._gpu.has_looked
        now_s = time.monotonic()
        return now_s >= self._memory_until_s and not (looks and now_s < self._first_look_until_s)

    def stand_still(self) -> None:
        """Delete and pack no checkpoint while one is chosen."""
        self._packing.stand_still()
        if self._disk is not None:
            self._disk.stand_still()

    def attempt_begins(self, run: RunSpec, launches: Sequence[Launch], attempt: int, resume_step: int) -> None:
        """Before any of its processes has started."""
        folders = (self._run_dir.attempt(attempt), *self._program.log_folders(run))
        own_log = self._run_dir.watches / "ear.log"
        self._ear = Ear([launch.log for launch in launches], folders, attempt, self._inbox, own_log)
        self._observer = self._program.observer(run, self._run_dir, attempt, resume_step)
        if self._observer is not None:
            self._observer.begin()
            self._watching.add(self._observer)

    def variables(self, state: State, role: str) -> tuple[Variable, ...]:
        """The GPUs that are a role's own and may still be used, as a variable beside its plan."""
        gpus, left_out = self._gpu.remaining(()) if self._gpu is not None else (), state.left_out
        if self._gpu is not None and self._program.gpus_by_number:
            gpus, left_out = self._gpu.numbers(gpus), self._gpu.numbers(left_out)
        variable = placed(role, self._roles, gpus, left_out)
        return (variable,) if variable is not None else ()

    def started(self, launch: Launch, attempt: int, identity: Identity) -> None:
        """One of its processes has been started."""
        if launch.ready is not None:
            self._waiting.append(service.Waiting(launch.ready, launch.role, attempt, identity, self._inbox))

    def suspect(self, state: State) -> None:
        """It will soon have been silent for too long."""
        if state.live is not None:
            self._suspicion.suspect(state.live)

    def activity(self, state: State) -> Activity | None:
        """What the processes of a silent attempt do; None while that is still looked at."""
        return self._suspicion.verdict(state.live) if state.live is not None else None

    def keep_evidence(self, state: State, attempt: int) -> None:
        """Write down what can be known of it, beside the loop. Asked again and again until that is done."""
        if state.live is not None:
            logs = [Path(child.log) for child in state.live.children]
            self._suspicion.keep_evidence(attempt, state.live, logs)

    def silenced(self, state: State) -> Iterator[Event]:
        """All of its processes are gone, and it is not judged yet: who speaks for it, and the driver, say the rest."""
        if self._observer is not None:
            self._observer.end(state)
        yield from self._watching.last_look(state, time.time())

    def cause(self) -> Cause | None:
        """What the logs of the attempt say, now that nothing writes any more."""
        return self._ear.cause() if self._ear is not None else None

    def attempt_ended(self) -> None:
        """All of its processes are gone, and its end is written down."""
        self._suspicion.drop()
        if self._observer is not None:
            self._observer.end()
            self._observer = None
        for waiting in self._waiting:
            waiting.stop()
        if self._waiting:
            self._memory_until_s = time.monotonic() + service.FREED_LIMIT_S + _LAST_ANSWER_S
            service.await_memory(0, self._inbox, self._held_before)
        self._waiting.clear()
        if self._ear is not None:
            self._ear.end()
            self._ear = None


def _never_ready(never: service.NeverReady, step: int) -> AlarmRaised:
    what = f"{never.role} does not serve after {never.waited_s:.0f} s: {never.last}"
    why = "its health and an answer of one token are what shows that a server works; its log says more"
    fix = "read the cause below it; a large model may need a higher inference.ready_limit_s"
    return AlarmRaised(
        *(never.attempt, "engine", "never_ready", never.role, "restart", never.cause_class),
        *(what, why, fix, never.url, step),
    )


def _still_held(held: Sequence[str], attempt: int, step: int) -> AlarmRaised:
    what = f"GPU memory was not given back: {'; '.join(held)}"
    why = "a process that a driver keeps holds it; the next attempt has so much less"
    fix = "end that process; if none is named, reset the GPU or restart the machine"
    return AlarmRaised(attempt, *_MEMORY_HELD, "alert", "hardware", what, why, fix, "", step)


def _freed(freed: Freed, attempt: int) -> SpaceFreed:
    return SpaceFreed(attempt, str(freed.path), freed.size_bytes, freed.reason, freed.failed)
