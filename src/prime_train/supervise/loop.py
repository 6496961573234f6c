"""The loop of the supervisor: read new events, fold, show, decide, act, until the run ends.

Every action is written as an event before it is done; state comes only from reading events, so a restarted supervisor
has the same state.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from prime_train import __version__, events
from prime_train.core.disk_error import UNWRITABLE
from prime_train.core.errors import ExitCode
from prime_train.core.own_secrets import own_secrets
from prime_train.core.process_id import Identity, own_identity
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.events import Event, EventLog, Follower, Record
from prime_train.events.damage import describe
from prime_train.spec import RunSpec
from prime_train.supervise import actions, launch_limit, process, snapshot
from prime_train.supervise.attempt_end import (
    build_end_event,
    collect_evidence,
    collect_orphan_evidence,
    endless_launches_error,
    events_lost_error,
    leftover_processes_error,
    no_loadable_checkpoint,
    start_failure,
    unkillable_processes,
    unwritable_run_error,
)
from prime_train.supervise.attempt_facts import count_oom_kills
from prime_train.supervise.children import Children
from prime_train.supervise.diagnose import Cause, judge
from prime_train.supervise.fold import fold
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.launch import Launch, to_json
from prime_train.supervise.launch.program import Program
from prime_train.supervise.launch.run_directory import apply_micro_batch, choose_checkpoint, would_lose_checkpoints
from prime_train.supervise.machines.protocol import ROLE as RELAY
from prime_train.supervise.policy import Policy, build_policy, decide
from prime_train.supervise.services import Services
from prime_train.supervise.state import State
from prime_train.supervise.stop_request import signals_into
from prime_train.supervise.watches.standard import create_watches
from prime_train.supervise.watches.watch import Watches

TICK_S = 0.5
WRITER = "supervisor"

Show = Callable[[State, Sequence[Record]], None]


def supervise(
    run: RunSpec,
    run_dir: RunDir,
    show: Show,
    program: Program,
    policy: Policy | None = None,
    watches: Watches | None = None,
) -> ExitCode:
    """Supervise a run whose lock is held and whose directory exists. Returns its exit code.

    Call it from the main thread. `show` is called at each turn with the new records. The config decides `policy` and
    `watches` if they are not given.
    """
    policy = policy or build_policy(run, program)
    watches = watches if watches is not None else create_watches(run, run_dir, program, policy)
    try:
        supervision = _Supervision(run, run_dir, show, program, policy, watches)
        with signals_into(supervision.inbox):
            try:
                supervision.begin()
                while not supervision.state.closed:
                    supervision.turn()
            finally:
                supervision.release()
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise unwritable_run_error(error, run_dir) from error
    return ExitCode(supervision.state.exit_code or 0)


class _Supervision:
    """The objects of one loop: event log, follower, inbox, services and child processes."""

    def __init__(
        self, run: RunSpec, run_dir: RunDir, show: Show, program: Program, policy: Policy, watches: Watches
    ) -> None:
        self.state = State()
        self.inbox: SimpleQueue[object] = SimpleQueue()
        self._run = run
        self._run_dir = run_dir
        self._show = show
        self._program = program
        self._policy = policy
        self._log = EventLog(run_dir.events, WRITER)
        self._follower = Follower(run_dir.events)
        self._secrets = own_secrets([run.prime_train.alerts.webhook_env])
        self._services = Services(run, run_dir, program, watches, self.inbox, self._secrets)
        self._children = Children(run_dir, self.inbox, self._list_spared)
        self._launches: tuple[Launch, ...] = ()
        self._oom_kills = 0
        self._launched = launch_limit.Launched()
        self._saved_bytes = 0
        self._clock = Clock()
        self._foreign_children = process.list_own_children()

    def _list_spared(self) -> tuple[Identity, ...]:
        return (*self._foreign_children, *self._services.processes())

    # --- begin, turn, release ---

    def begin(self) -> None:
        """Read the past events, end the processes of a dead supervisor, and open the run."""
        process.become_subreaper()
        self._read()
        self._end_stale()
        self._append(events.RunOpened(self._run.run.name, os.getpid(), self._run.run.max_steps, __version__))
        damage = describe(self._follower.damage)
        if damage and damage != self.state.damage:
            self._append(events.EventsDamaged(damage))
        self._services.begin()

    def turn(self) -> None:
        jump_s = self._clock.jump_s()
        if jump_s is not None:
            self._append(events.ClockJumped(jump_s))
        now_s = time.time()  # before reading, so that a slow read is not counted as trainer silence
        self._read()
        if not self._log.path.exists():
            raise events_lost_error(self._run_dir)
        for event in self._services.turn(self.state, now_s):
            self._append(event)
        match decide(self.state, self._policy, now_s):
            case actions.Launch() if not self._may_launch():
                self._wait(now_s + TICK_S)
            case actions.Launch(attempt=attempt):
                self._launch(attempt)
            case actions.StartRole(attempt=attempt, role=role):
                self._start(attempt, role)
            case actions.AskStop(attempt=attempt, reason=reason):
                self._append(events.SignalSent(attempt, "stop_requested", reason))
                self._run_dir.stop_request(attempt).touch()
            case actions.Pause(reason=reason, saves=saves):
                self._append(events.StopAsked(reason, saves))
            case actions.Suspect(until_s=until_s):
                self._services.suspect(self.state)
                self._wait(until_s)
            case actions.FindHang() as found:
                self._check_silence(found, now_s)
            case actions.KeepEvidence(attempt=attempt):
                self._services.keep_evidence(self.state, attempt)
                self._wait(now_s + TICK_S)
            case actions.Signal(attempt=attempt, signal=name, reason=reason, roots=roots):
                self._append(events.SignalSent(attempt, name, reason))
                self._children.signal(signal.Signals[name], roots=roots)
            case actions.GiveUp():
                self._finish_attempt(None)
            case actions.Shrink(attempt=attempt, micro_batch=micro_batch):
                self._append(events.BatchShrunk(attempt, micro_batch))
            case actions.LeaveOut(gpu=gpu, reason=reason):
                self._append(events.GpuLeftOut(gpu, reason))
            case actions.Close(state=end, exit_code=exit_code, reason=reason):
                self._append(events.RunClosed(end, int(exit_code), reason))
            case actions.Wait(until_s=until_s):
                self._wait(until_s)
            case actions.Nothing():
                pass

    def release(self) -> None:
        """End every process. Each step runs even if the loop or another step raised."""
        with contextlib.ExitStack() as last:
            last.callback(self._log.close)
            # Another supervisor may hold the run by then, if the lock was deleted: its processes stay.
            last.callback(process.sweep, self._run_dir.path, self._foreign_children, supervisor=own_identity())
            last.callback(self._end_services)
            last.callback(self._flush_backup)
            self._children.end_rest(gently=False)

    def _flush_backup(self) -> None:
        """Copy the last checkpoint of a closed run. A signal ends the wait."""
        if self.state.closed:
            for event in self._services.flush(self.state, self._has_signal):
                self._append(event)

    def _has_signal(self) -> bool:
        with contextlib.suppress(Empty):
            while True:
                if isinstance(self.inbox.get_nowait(), signal.Signals):
                    return True
        return False

    def _end_services(self) -> None:
        for sent in self._services.end():
            self._log.append(sent)

    def _check_silence(self, found: actions.FindHang, now_s: float) -> None:
        """A silence beyond its limit is a hang, unless the processes are seen at work and their extra time remains."""
        activity = self._services.activity(self.state)
        if activity is None:
            self._wait(now_s + TICK_S)
        elif activity.busy and found.until_s > now_s:
            self._append(events.ActivitySeen(found.attempt, activity.what, found.until_s))
        else:
            silent_s = round(found.silent_s, 1)
            self._append(events.HangFound(found.attempt, silent_s, found.limit_s, found.phase, activity.what))

    # --- reading and writing ---

    def _read(self) -> list[Record]:
        records = self._follower.poll()
        for record in records:
            self.state = fold(self.state, record)
            self._services.handle_record(self.state, record)
        if self._follower.read_bytes - self._saved_bytes >= snapshot.SAVED_BYTES * 8:
            self._saved_bytes = self._follower.read_bytes
            with contextlib.suppress(OSError):  # a cache
                snapshot.save(self._run_dir, self.state, self._follower)
        self._show(self.state, records)
        return records

    def _append(self, event: Event) -> None:
        """Write an event and read it back. Raises UserError if that fails, because the loop would repeat the action.

        The life and the position prove that the line is this one; the reader has compared its checksum.
        """
        written = self._log.append(event)
        if not any((read.life, read.seq) == (written.life, written.seq) for read in self._read()):
            raise events_lost_error(self._run_dir)

    def _wait(self, until_s: float) -> None:
        """Wait for a message, until `until_s` or the next turn at the latest, and handle the message."""
        try:
            message = self.inbox.get(timeout=max(0.0, min(TICK_S, until_s - time.time())))
        except Empty:
            return
        match message:
            case process.Exited() as exited:
                if self._children.remove(exited):
                    self._finish_attempt(exited)
            case signal.Signals() as number:
                self._append(events.StopAsked(number.name))
            case _:
                for event in self._services.handle_message(self.state, message):
                    self._append(event)

    # --- attempts ---

    def _may_launch(self) -> bool:
        is_early = time.monotonic() < launch_limit.earliest_s(self._launched, self._policy)
        return not is_early and self._services.may_launch(self.state)

    def _launch(self, attempt: int) -> None:
        """Plan the next attempt. Its processes start one by one, because each may wait for the ones before it."""
        self._services.hold_checkpoints()
        found = self._program.checkpoints(self._run, self._run_dir)
        chosen, rejected = choose_checkpoint(found, self.state.unreadable)
        self._launched = launch_limit.count(self._launched, chosen, time.monotonic())
        if launch_limit.is_spent(self._launched, self._policy):
            raise endless_launches_error(self._launched.fruitless, self._run_dir)
        self._run = apply_micro_batch(self._run, self._run_dir, self.state.micro_batch)
        self._launches = self._program.plan(self._run, self._run_dir, attempt, chosen)
        self._clear_remains(attempt)
        roles = tuple(launch.role for launch in self._launches)
        services = tuple(launch.role for launch in self._launches if launch.ready is not None)
        self._append(events.LaunchAsked(attempt, chosen, rejected, roles, services))
        if chosen == 0 and would_lose_checkpoints(found, self._run.checkpoint.interval_steps):
            self._end_attempt(None, no_loadable_checkpoint(rejected, self._run_dir))
            return
        self._oom_kills = count_oom_kills()
        self._services.begin_attempt(self._run, self._launches, attempt, chosen)

    def _clear_remains(self, attempt: int) -> None:
        """Delete what would end or confuse an attempt at once. On a new machine the newest events may be missing, so
        the number of an attempt may have been used, and its folder exists."""
        for remains in (self._run_dir.stop_request(attempt), self._run_dir.rendezvous(attempt)):
            with contextlib.suppress(OSError):
                remains.unlink()

    def _start(self, attempt: int, role: str) -> None:
        launch = self._add_environment(next(launch for launch in self._launches if launch.role == role), attempt)
        try:
            make_folder(self._run_dir.attempt(attempt))
            write_atomic(self._run_dir.launch(attempt, role), to_json(environment.hide(launch, self._secrets)))
            child = self._children.start(launch, attempt).identity
        except OSError as error:
            if error.errno in UNWRITABLE:
                raise
            self._children.end_rest(gently=False)
            self._end_attempt(None, start_failure(error, self._run_dir.launch(attempt, role)))
            return
        self._append(events.ChildStarted(attempt, role, child.pid, child.start_ticks, str(launch.log)))
        self._services.await_ready(launch, attempt, child)

    def _add_environment(self, launch: Launch, attempt: int) -> Launch:
        host = environment.read_host(str(own_identity()))
        needs = self._program.environment(launch.role, self._run, self._run_dir, attempt, host)
        added = environment.plan(needs, self._run_dir, host)
        gpus = self._services.variables(self.state, launch.role)
        return replace(launch, variables=(*added, *launch.variables, *gpus))

    def _finish_attempt(self, exited: process.Exited | None) -> None:
        """A child exited, or none will: end the others, read the last events, and judge the end of the attempt."""
        services = self.state.live.services if self.state.live else ()
        # After the trainer's exit the others end by themselves. A trainer that lost one of them cannot save.
        gently = exited is not None and exited.role not in (*services, RELAY)
        stuck = self._children.end_rest(gently=gently)
        self._read()
        for event in self._services.last_events(self.state):
            self._append(event)
        self._read()
        live = self.state.live
        if live is None:
            return
        found = collect_evidence(self.state, live, self._policy, self._run_dir, exited)
        found = replace(found, log_cause=self._services.cause(), oom_kills=count_oom_kills() - self._oom_kills)
        cause = unkillable_processes(stuck, found.log) if stuck else judge(self.state, live, found)
        self._end_attempt(found.returncode, cause)

    def _end_stale(self) -> None:
        """End the processes of an attempt whose supervisor died, and write the event of its end."""
        stuck = process.sweep(self._run_dir.path, self._foreign_children)
        self._read()
        live = self.state.live
        if stuck:
            raise leftover_processes_error(stuck, self._run_dir)
        if live is not None:
            self._end_attempt(None, judge(self.state, live, collect_orphan_evidence(live, self._run_dir)))

    def _end_attempt(self, returncode: int | None, cause: Cause) -> None:
        found = self._program.checkpoints(self._run, self._run_dir)
        self._append(build_end_event(self.state, returncode, cause, found, self._secrets))
        self._services.end_attempt()


JUMP_S = 5.0  # smaller jumps are gradual corrections of the clock


class Clock:
    """Compares the wall clock with the monotonic clock, which stops while the machine sleeps."""

    def __init__(self) -> None:
        self._ahead_s = _ahead_s()

    def jump_s(self) -> float | None:
        """How far the wall clock moved against the monotonic clock since the last call; None if it did not."""
        ahead_s = _ahead_s()
        jump_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return round(jump_s, 3) if abs(jump_s) > JUMP_S else None


def _ahead_s() -> float:
    return time.time() - time.monotonic()
