"""Runs one training run to its end: read new events, fold, show, decide, act. The only loop, and it does not train.

Every action is written as an event before it is done; state comes only from reading events, so a restarted supervisor
has the same state.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from prime_train import __version__
from prime_train.checkpoints.layout import Checkpoint
from prime_train.core.errors import ExitCode
from prime_train.core.process_id import Identity, own_identity
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events import (
    ActivitySeen,
    BatchShrunk,
    ChildStarted,
    ClockJumped,
    Event,
    EventLog,
    Follower,
    GpuLeftOut,
    HangFound,
    LaunchAsked,
    Record,
    RunClosed,
    RunOpened,
    SignalSent,
    StopAsked,
)
from prime_train.spec import RunSpec
from prime_train.supervise import actions, process
from prime_train.supervise import policy as rules
from prime_train.supervise.attempt_end import ended, evidence, of_the_dead
from prime_train.supervise.child_processes import Children
from prime_train.supervise.clock_jump import Clock
from prime_train.supervise.diagnose import Cause, judge, oom_kills
from prime_train.supervise.fatal_errors import lost, not_started, nothing_loads, still_there, unkillable, unwritable
from prime_train.supervise.fold import fold
from prime_train.supervise.launch import environment
from prime_train.supervise.launch import environment as surroundings
from prime_train.supervise.launch.launch import Launch, to_json
from prime_train.supervise.launch.program import Program
from prime_train.supervise.launch.run_directory import with_micro_batch
from prime_train.supervise.policy import Policy, decide
from prime_train.supervise.resume_choice import choice, would_lose_much
from prime_train.supervise.services import Companions
from prime_train.supervise.state import State
from prime_train.supervise.stop_request import signals_into
from prime_train.supervise.watches.standard import create_watches
from prime_train.supervise.watches.watch import Watches

TICK_S = 0.5
WRITER = "supervisor"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

Show = Callable[[State, Sequence[Record]], None]


def supervise(
    run: RunSpec,
    run_dir: RunDir,
    show: Show,
    program: Program,
    policy: Policy | None = None,
    watches: Watches | None = None,
) -> ExitCode:
    """Supervise a run whose lock is held and whose directory is prepared; returns how it ended.

    Call it from the main thread. `show` is called at each turn of the loop with what is new. Without `policy` and
    `watches` the config decides.
    """
    chosen = policy or rules.policy(run, program)
    looked_after = watches if watches is not None else create_watches(run, run_dir, program, chosen)
    try:
        supervision = _Supervision(run, run_dir, show, program, chosen, looked_after)
        with signals_into(supervision.inbox):
            try:
                supervision.begin()
                while not supervision.state.closed:
                    supervision.turn()
            finally:
                supervision.release()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise unwritable(error, run_dir) from error
    return ExitCode(supervision.state.exit_code or 0)


class _Supervision:
    """The loop's possessions: the event log it writes, the reader, the inbox, and the processes that run."""

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
        self._secrets = environment.secrets(os.environ, [run.prime_train.alerts.webhook_env])
        self._companions = Companions(run, run_dir, program, watches, self.inbox, self._secrets)
        self._children = Children(run_dir, self.inbox, self._spared)
        self._launches: tuple[Launch, ...] = ()
        self._oom_kills = 0
        self._clock = Clock()
        self._not_ours = process.own_children()

    def _spared(self) -> tuple[Identity, ...]:
        return (*self._not_ours, *self._companions.processes())

    # --- the three parts of a supervisor's life ---

    def begin(self) -> None:
        """Learn what happened before, end what a dead supervisor left behind, and open the run."""
        process.become_subreaper()
        self._read()
        self._end_stale()
        self._say(RunOpened(self._run.run.name, os.getpid(), self._run.run.max_steps, __version__))
        self._companions.begin()

    def turn(self) -> None:
        jump_s = self._clock.jump_s()
        if jump_s is not None:
            self._say(ClockJumped(jump_s))
        now_s = time.time()  # before reading, so that a slow read is not counted as trainer silence
        self._read()
        if not self._log.path.exists():
            raise lost(self._run_dir)
        for event in self._companions.turn(self.state, now_s):
            self._say(event)
        match decide(self.state, self._policy, now_s):
            case actions.Launch() if not self._companions.may_launch(self.state):
                self._wait(now_s + TICK_S)
            case actions.Launch(attempt=attempt):
                self._launch(attempt)
            case actions.StartRole(attempt=attempt, role=role):
                self._start(attempt, role)
            case actions.AskStop(attempt=attempt, reason=reason):
                self._say(SignalSent(attempt, "stop_requested", reason))
                self._run_dir.stop_request(attempt).touch()
            case actions.Pause(reason=reason, saves=saves):
                self._say(StopAsked(reason, saves))
            case actions.Suspect(until_s=until_s):
                self._companions.suspect(self.state)
                self._wait(until_s)
            case actions.FindHang() as found:
                self._silent(found, now_s)
            case actions.KeepEvidence(attempt=attempt):
                self._companions.keep_evidence(self.state, attempt)
                self._wait(now_s + TICK_S)
            case actions.Signal(attempt=attempt, signal=name, reason=reason, roots=roots):
                self._say(SignalSent(attempt, name, reason))
                self._children.signal(signal.Signals[name], roots=roots)
            case actions.GiveUp():
                self._ended(None)
            case actions.Shrink(attempt=attempt, micro_batch=micro_batch):
                self._say(BatchShrunk(attempt, micro_batch))
            case actions.LeaveOut(gpu=gpu, reason=reason):
                self._say(GpuLeftOut(gpu, reason))
            case actions.Close(state=end, exit_code=exit_code, reason=reason):
                self._say(RunClosed(end, int(exit_code), reason))
            case actions.Wait(until_s=until_s):
                self._wait(until_s)
            case actions.Nothing():
                pass

    def release(self) -> None:
        """Leave no process behind, whatever ended the loop, and whatever goes wrong here."""
        with contextlib.ExitStack() as last:
            last.callback(self._log.close)
            last.callback(process.sweep, self._run_dir.path, self._not_ours)
            last.callback(self._end_companions)
            self._children.end_rest(gently=False)

    def _end_companions(self) -> None:
        for sent in self._companions.end():
            self._log.append(sent)

    def _silent(self, found: actions.FindHang, now_s: float) -> None:
        """Beyond its limit: a hang, unless its processes are seen at work and its time is not up."""
        activity = self._companions.activity(self.state)
        if activity is None:
            self._wait(now_s + TICK_S)
        elif activity.busy and found.until_s > now_s:
            self._say(ActivitySeen(found.attempt, activity.what, found.until_s))
        else:
            self._say(HangFound(found.attempt, round(found.silent_s, 1), found.limit_s, found.phase, activity.what))

    # --- reading and writing ---

    def _read(self) -> None:
        records = self._follower.poll()
        for record in records:
            self.state = fold(self.state, record)
            self._companions.hear(self.state, record)
        self._show(self.state, records)

    def _say(self, event: Event) -> None:
        """Write an event and learn it by reading. Raises UserError where it does not come back."""
        said = self._log.append(event)
        self._read()
        if not any(mark.writer == WRITER and mark.seq >= said.seq for mark in self.state.read):
            raise lost(self._run_dir)  # to go on without it would be to act on it again and again

    def _wait(self, until_s: float) -> None:
        """Until something is in the inbox, `until_s`, or the next look at the events."""
        try:
            message = self.inbox.get(timeout=max(0.0, min(TICK_S, until_s - time.time())))
        except Empty:
            return
        match message:
            case process.Exited() as exited:
                if self._children.exited(exited) is not None:
                    self._ended(exited)
            case signal.Signals() as number:
                self._say(StopAsked(number.name))
            case _:
                for event in self._companions.told(self.state, message):
                    self._say(event)

    # --- attempts ---

    def _launch(self, attempt: int) -> None:
        """Plan the next attempt. Its processes start one by one, because each may wait for those before it."""
        self._companions.stand_still()
        found = self._checkpoints()
        chosen, rejected = choice(found, self.state.unreadable)
        self._run = with_micro_batch(self._run, self._run_dir, self.state.micro_batch)
        self._launches = self._program.plan(self._run, self._run_dir, attempt, chosen)
        roles = tuple(launch.role for launch in self._launches)
        services = tuple(launch.role for launch in self._launches if launch.ready is not None)
        self._say(LaunchAsked(attempt, chosen, rejected, roles, services))
        if chosen == 0 and would_lose_much(found, self._run.checkpoint.interval_steps):
            self._end_attempt(None, nothing_loads(rejected, self._run_dir))
            return
        self._oom_kills = oom_kills()
        self._companions.attempt_begins(self._run, self._launches, attempt, chosen)

    def _start(self, attempt: int, role: str) -> None:
        launch = self._with_environment(next(launch for launch in self._launches if launch.role == role), attempt)
        try:
            self._run_dir.attempt(attempt).mkdir(parents=True, exist_ok=True)
            written = to_json(environment.hide(launch, self._secrets))
            write_atomic(self._run_dir.launch(attempt, role), written)
            named = self._children.start(launch, attempt).identity
        except OSError as error:
            if error.errno in _UNWRITABLE:
                raise
            self._children.end_rest(gently=False)
            self._end_attempt(None, not_started(error, self._run_dir.launch(attempt, role)))
            return
        self._say(ChildStarted(attempt, role, named.pid, named.start_ticks, str(launch.log)))
        self._companions.started(launch, attempt, named)

    def _checkpoints(self) -> list[Checkpoint]:
        return self._program.checkpoints(self._run, self._run_dir)

    def _with_environment(self, launch: Launch, attempt: int) -> Launch:
        host = surroundings.host(str(own_identity()))
        needs = self._program.environment(launch.role, self._run, self._run_dir, attempt, host)
        added = environment.plan(needs, self._run_dir, host)
        return replace(
            launch, variables=(*added, *launch.variables, *self._companions.variables(self.state, launch.role))
        )

    def _ended(self, exited: process.Exited | None) -> None:
        """A child has exited, or none will: end the rest of the attempt, hear its last words, say what it was."""
        services = self.state.live.services if self.state.live else ()
        stuck = self._children.end_rest(gently=exited is not None and exited.role not in services)
        self._read()
        for event in self._companions.silenced(self.state):
            self._say(event)
        self._read()
        live = self.state.live
        if live is None:
            return
        heard = self._companions.cause()
        left = evidence(self.state, live, self._policy, self._run_dir, exited, heard)
        left = replace(left, oom_kills=oom_kills() - self._oom_kills)
        stayed = unkillable([f"{process.pid}" for process in stuck], left.log) if stuck else None
        self._end_attempt(left.returncode, stayed or judge(self.state, live, left))

    def _end_stale(self) -> None:
        """End the processes of an attempt whose supervisor died, and close its account."""
        live = self.state.live
        for child in live.children if live else ():
            process.signal_tree(Identity(child.pid, child.start_ticks), signal.SIGKILL)
        stuck = process.sweep(self._run_dir.path, self._not_ours)
        self._read()
        live = self.state.live
        if stuck:
            raise still_there([f"{p.pid}" for p in stuck], self._run_dir)
        if live is not None:
            self._end_attempt(None, judge(self.state, live, of_the_dead(live, self._run_dir)))

    def _end_attempt(self, returncode: int | None, cause: Cause) -> None:
        found = self._checkpoints()
        self._say(ended(self.state.attempt_number, returncode, cause, found, self.state.unreadable, self._secrets))
        self._companions.attempt_ended()
