"""Background services of the supervisor: watches, log follower, alerts, packing, backup. Decides nothing.

The loop calls each of them and writes the events that they return. They must not block the loop: slow work runs in a
thread or a child process, which puts its result into the inbox.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from prime_train import events
from prime_train.core.machines import find_machine
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.diagnose.cause import Cause
from prime_train.events import Event, Record
from prime_train.spec import PrimeTrain, RunSpec
from prime_train.supervise.core.event_text import build_alert
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.environment import assign_gpus
from prime_train.supervise.launch.program import Launch, Observer, Program, Variable
from prime_train.supervise.services import readiness as service
from prime_train.supervise.services.alerts import AlertSender
from prime_train.supervise.services.backup import BackgroundBackup
from prime_train.supervise.services.gpu_test import GpuTest
from prime_train.supervise.services.instability import InstabilityWatch
from prime_train.supervise.services.log_follower import LogFollower
from prime_train.supervise.services.packing import PackingChild
from prime_train.supervise.services.waiting_machines import WaitingMachines
from prime_train.supervise.services.watch_runner import WatchRunner
from prime_train.supervise.watches.hang.activity import Activity, Suspicion
from prime_train.supervise.watches.watch import RunningWatches

_MEMORY_HELD = ("gpu", "memory_held", "")  # an alarm without a watch
_FIRST_LOOK_S = 10.0  # for the first list of GPUs from the driver
_LAST_ANSWER_S = 15.0  # for a query of the driver that starts at the end of the wait for GPU memory


class RunServices:
    """All services; one method for each stage of a supervision at which they act."""

    def __init__(
        self,
        run: RunSpec,
        run_dir: RunDir,
        program: Program,
        watches: RunningWatches,
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
        self._alerts = AlertSender(alerts.command, alerts.webhook_env, os.environ)
        self._packing = PackingChild(run_dir, run.prime_train.backup.compress)
        self._backup = BackgroundBackup(run, run_dir, partial(program.places, run, run_dir))
        self._gpu_test = GpuTest(run_dir)
        self._waiting = WaitingMachines(run, run_dir)
        self._observer: Observer | None = None
        self._instability = InstabilityWatch(run, run_dir, program)
        self._watch_runner = WatchRunner(tuple(watches), run_dir)
        self._hang_check = Suspicion(run_dir, inbox, hidden)
        self._log_follower: LogFollower | None = None
        self._waiters: list[service.ReadinessWaiter] = []
        self._held_before: dict[str, int] = {}
        self._memory_until_s = 0.0  # end of the wait for GPU memory, on the monotonic clock
        self._first_look_until_s = 0.0  # on the monotonic clock
        self._has_begun = False  # events from before the start cause no alerts

    # --- for the whole supervision ---

    def begin(self) -> None:
        self._has_begun = True
        if any(role.serves for role in self._roles):
            self._held_before = service.read_used_bytes()  # by other programs, because the run has no process yet
        self._first_look_until_s = time.monotonic() + _FIRST_LOOK_S
        self._watch_runner.begin()

    def turn(self, state: State, now_s: float) -> Iterator[Event]:
        """The new events, at each turn of the loop."""
        yield from self._watch_runner.look(state, now_s)
        yield from self._instability.turn(state)
        yield from self._alerts.results()
        self._packing.consider(state)
        yield from self._packing.results()
        self._backup.consider(state)
        yield from self._backup.results(state)
        yield from self._gpu_test.results()
        yield from self._waiting.turn(state)
        for freed in self._disk.freed() if self._disk is not None else ():
            path, size_bytes = str(freed.path), freed.size_bytes
            yield events.SpaceFreed(state.attempt_number, path, size_bytes, freed.reason, freed.failed)

    def take_settings(self, settings: PrimeTrain) -> None:
        """Go on with settings that have changed."""
        self._watch_runner.take_settings(settings)
        self._instability.settings = settings.instability

    def handle_record(self, state: State, record: Record) -> None:
        """Take an event of any writer, and send an alert for it; `state` is the state after it."""
        self._instability.take(record.event, judges=self._has_begun)
        alert = build_alert(record.event, state) if self._has_begun else None
        if alert is not None:
            self._alerts.send(alert.about, alert.document, at_once=alert.is_end)

    def handle_message(self, state: State, message: object) -> Iterator[Event]:
        number = state.live.number if state.live else 0
        match message:
            case events.EvidenceKept() | events.LogNoticed() | events.ServiceReady() if message.attempt == number:
                yield message
            case service.NeverReady(attempt=attempt) as never if attempt == number:
                yield _alarm_never_ready(never, state.step)
            case service.MemoryReleased(held=held):
                self._memory_until_s = 0.0
                if held:
                    yield _alarm_memory_held(held, number, state.step)
                elif any(active.key == _MEMORY_HELD for active in state.alarms):
                    yield events.AlarmCleared(number, *_MEMORY_HELD)

    def processes(self) -> tuple[Identity, ...]:
        """The processes of the services, which belong to no attempt."""
        return (
            *self._watch_runner.processes(),
            *self._hang_check.processes(),
            *self._alerts.processes(),
            *self._packing.processes(),
            *self._backup.processes(),
            *self._gpu_test.processes(),
            *self._waiting.processes(),
        )

    def flush(self, state: State, is_interrupted: Callable[[], bool]) -> Iterator[Event]:
        """Copy the newest checkpoint of a run that is over into its bucket, if it is not there.

        On a machine that goes away the copy has the time until then, and no signal ends it: the machine sends one.
        """
        if self._backup.needs_flush(state):
            limit_s = self._run.prime_train.backup.flush_limit_s
            if state.leaves_s is not None:
                limit_s = max(0.0, min(limit_s, state.leaves_s - time.time()))
            yield events.BackupFlushBegun(state.newest_complete, limit_s)
            self._packing.end()
            self._backup.flush(state, is_interrupted if state.leaves_s is None else lambda: False, limit_s)
        yield from self._backup.results(state)

    def end(self) -> list[events.AlertSent]:
        """Stop all services; returns the results of the last alerts."""
        self.end_attempt()
        self._packing.close()
        self._backup.end()
        self._gpu_test.end()
        self._waiting.end()
        self._watch_runner.end()
        return self._alerts.close()

    def list_gpus(self) -> tuple[tuple[str, str], ...]:
        """Number and UUID of each GPU of the run, the left out ones too; empty where none is known."""
        if self._gpu is None:
            return ()
        uuids = self._gpu.remaining(())
        return tuple(zip(self._gpu.numbers(uuids), uuids, strict=True))

    def test_gpus(self, request_id: str, gpus: Sequence[str]) -> None:
        """Test GPUs in a child, or all GPUs of other machines there; `turn` returns the results."""
        is_here = all(find_machine(gpu) < 0 for gpu in gpus)
        (self._gpu_test.run if is_here else self._waiting.test)(request_id, gpus)

    # --- for one attempt ---

    def may_launch(self, state: State) -> bool:
        """The GPU memory of the last attempt is released; the GPUs are known, if they must be divided or left out."""
        now_s = time.monotonic()
        needs_gpus = len(self._roles) > 1 or bool(state.left_out)
        knows_gpus = self._gpu is None or self._gpu.has_looked or now_s >= self._first_look_until_s
        return now_s >= self._memory_until_s and (knows_gpus or not needs_gpus)

    def hold_checkpoints(self) -> None:
        """Delete, pack and copy no checkpoint while the next attempt chooses one."""
        self._packing.end()
        self._backup.end()
        if self._disk is not None:
            self._disk.stand_still()

    def begin_attempt(self, run: RunSpec, launches: Sequence[Launch], attempt: int, resume_step: int) -> None:
        """Called before the first process of the attempt starts."""
        folders = (self._run_dir.attempt(attempt), *self._program.log_folders(run))
        own_log = self._run_dir.watches / "log_follower.log"
        self._log_follower = LogFollower([launch.log for launch in launches], folders, attempt, self._inbox, own_log)
        self._observer = self._program.observer(run, self._run_dir, attempt, resume_step)
        if self._observer is not None:
            self._observer.begin()
            self._watch_runner.add(self._observer)

    def variables(self, state: State, role: str) -> tuple[Variable, ...]:
        """CUDA_VISIBLE_DEVICES, if the role has GPUs of its own or some GPUs are left out."""
        gpus, left_out = self._gpu.remaining(()) if self._gpu is not None else (), state.left_out
        if self._gpu is not None and self._program.gpus_by_number:
            gpus, left_out = self._gpu.numbers(gpus), self._gpu.numbers(left_out)
        variable = assign_gpus(role, self._roles, gpus, left_out)
        return (variable,) if variable is not None else ()

    def await_ready(self, launch: Launch, attempt: int, identity: Identity) -> None:
        """Wait, in a thread, until the process that was started is ready, if it is a service."""
        if launch.ready is not None:
            self._waiters.append(service.ReadinessWaiter(launch.ready, launch.role, attempt, identity, self._inbox))

    def suspect(self, state: State) -> None:
        """Start to check what the processes of a silent attempt do."""
        if state.live is not None:
            self._hang_check.suspect(state.live)

    def activity(self, state: State) -> Activity | None:
        """What the processes of a silent attempt do; None while the check runs."""
        return self._hang_check.verdict(state.live) if state.live is not None else None

    def keep_evidence(self, state: State, attempt: int) -> None:
        """Write the evidence in a thread. The loop calls this at every turn until the evidence is written."""
        if state.live is not None:
            logs = [Path(child.log) for child in state.live.children]
            self._hang_check.keep_evidence(attempt, state.live, logs)

    def last_events(self, state: State, returncode: int | None) -> Iterator[Event]:
        """The last events before the end of an attempt is judged: of its observer and of the GPU driver."""
        if self._observer is not None:
            self._observer.end(state, returncode)
        yield from self._watch_runner.last_look(state, time.time())

    def cause(self) -> Cause | None:
        """The root cause in the logs of the attempt, when its processes have ended or before a signal; it stays."""
        return self._log_follower.cause() if self._log_follower is not None else None

    def end_attempt(self) -> None:
        """Called when the event of its end is written."""
        self._hang_check.drop()
        if self._observer is not None:
            self._observer.end()
            self._observer = None
        for waiter in self._waiters:
            waiter.stop()
        if self._waiters:
            self._memory_until_s = time.monotonic() + service.FREED_LIMIT_S + _LAST_ANSWER_S
            service.await_memory(self._inbox, self._held_before)
        self._waiters.clear()
        if self._log_follower is not None:
            self._log_follower.end()
            self._log_follower = None


def _alarm_never_ready(never: service.NeverReady, step: int) -> events.AlarmRaised:
    what = f"{never.role} does not serve after {never.waited_s:.0f} s: {never.last}"
    why = "a server works when its health check and a request of one token succeed; see its log"
    fix = "read the cause in its log; a large model may need a higher inference.ready_limit_s"
    about = (never.attempt, "engine", "never_ready", never.role, "restart", never.cause_class)
    return events.AlarmRaised(*about, what, why, fix, never.url, step)


def _alarm_memory_held(held: Sequence[str], attempt: int, step: int) -> events.AlarmRaised:
    what = f"GPU memory was not released: {'; '.join(held)}"
    why = "a process that the driver keeps alive holds it, so the next attempt has less GPU memory"
    fix = "end that process; if none is named, reset the GPU or restart the machine"
    return events.AlarmRaised(attempt, *_MEMORY_HELD, "alert", "hardware", what, why, fix, "", step)
