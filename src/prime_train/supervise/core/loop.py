"""The loop of the supervisor: read new events, fold, show, decide, act, until the run ends.

Every action is written as an event before it is done; state comes only from reading events, so a restarted supervisor
has the same state.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from itertools import chain, islice
from queue import Empty, SimpleQueue

from prime_train import __version__, events
from prime_train.core.errors import UNWRITABLE, ExitCode
from prime_train.core.machines import find_machine
from prime_train.core.plans import read_plans
from prime_train.core.process_id import Identity, own_identity, own_user
from prime_train.core.redaction import own_secrets
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.spec.live_keys import OF_SUPERVISOR
from prime_train.spec.live_values import find_in_force, with_values
from prime_train.supervise.answers.answer import Answers
from prime_train.supervise.answers.settings import report_own
from prime_train.supervise.core import actions
from prime_train.supervise.core.attempt_end import leftover_processes_error, unwritable_run_error
from prime_train.supervise.core.attempts import Attempts
from prime_train.supervise.core.fold_drains import find_gpu_request
from prime_train.supervise.core.fold_instability import find_request
from prime_train.supervise.core.journal import Journal, Show
from prime_train.supervise.core.policy import Policy, build_policy, change_limits, decide
from prime_train.supervise.core.state import STOP_COMMAND, State
from prime_train.supervise.launch.program import Program
from prime_train.supervise.launch.run_directory import find_last_step, number_config
from prime_train.supervise.processes import process, requests
from prime_train.supervise.processes.children import Children
from prime_train.supervise.processes.requests import Request, RequestReader, RequestRefusal, signals_into
from prime_train.supervise.services.services import RunServices
from prime_train.supervise.services.watch_runner import create_watches
from prime_train.supervise.watches.watch import RunningWatches

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


TICK_S = 0.5
MOST_REQUESTS = 100  # of one turn: their answers take up to a second, and a trainer may need the loop


def supervise(
    run: RunSpec,
    run_dir: RunDir,
    show: Show,
    program: Program,
    policy: Policy | None = None,
    watches: RunningWatches | None = None,
) -> ExitCode:
    """Supervise a run whose lock is held and whose directory exists. Returns its exit code.

    Call it from the main thread. `show` is called at each turn with the new records. The config decides `policy` and
    `watches` if they are not given.
    """
    policy = policy or build_policy(run, program)
    watches = watches if watches is not None else create_watches(run, run_dir, program)
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
    """The objects of one loop: inbox, journal, attempts, services and child processes."""

    def __init__(
        self, run: RunSpec, run_dir: RunDir, show: Show, program: Program, policy: Policy, watches: RunningWatches
    ) -> None:
        self.inbox: SimpleQueue[object] = SimpleQueue()
        self._run = run
        self._run_dir = run_dir
        self._policy = policy
        secrets = own_secrets([run.prime_train.alerts.webhook_env])
        self._services = RunServices(run, run_dir, program, watches, self.inbox, secrets)
        self._journal = Journal(run_dir, self._services.handle_record, show)
        self._children = Children(run_dir, self.inbox, self._list_spared)
        self._attempts = Attempts(run, run_dir, program, policy, self._journal, self._services, self._children, secrets)
        self._requests = RequestReader(run_dir, own_identity())
        self._answers = Answers(run, run_dir, program, self._services.list_gpus, self.inbox)
        self._clock = Clock()
        self._own_policy = policy
        self._taken = (0, 0)  # version and attempt, when settings were taken last
        self._foreign_children = process.list_own_children()

    @property
    def state(self) -> State:
        return self._journal.state

    def _list_spared(self) -> tuple[Identity, ...]:
        return (*self._foreign_children, *self._services.processes(), *self._answers.processes())

    def begin(self) -> None:
        """Read the past events, end the processes of a dead supervisor, and open the run."""
        # Orphans of a trainer come to this process, and not to PID 1, so that the sweep can find and reap them.
        process.become_subreaper()
        self._journal.read()
        # Processes of a dead supervisor still write checkpoints and hold GPUs, so no attempt may start beside them.
        stuck = process.sweep(self._run_dir.path, self._foreign_children)
        self._journal.read()
        if stuck:
            raise leftover_processes_error(stuck, self._run_dir)
        self._attempts.end_stale()
        run, config = self._run.run, number_config(self._run_dir)
        last = find_last_step(self._run, self.state, self._run_dir)
        self._journal.append(events.RunOpened(run.name, os.getpid(), last, __version__, config, own_user()))
        self._pause_for_drained()
        damage = self._journal.describe_damage()
        if damage and damage != self.state.damage:
            self._journal.append(events.EventsDamaged(damage))
        self._services.begin()

    def _pause_for_drained(self) -> None:
        """A machine that was drained trains in no attempt before it is returned, unless the run has fewer machines."""
        count = self._run.parallel.machines
        for name in self.state.drained_machines:
            if find_machine(name) >= count or count == 1:
                self._journal.append(events.GpuReturned(name, f"the run has {count} machines"))
        if drained := ", ".join(self.state.drained_machines):
            about = (f"drained-{os.getpid()}", "pause", f"the drain of {drained}")
            self._journal.append(events.CommandAccepted(*about))

    def turn(self) -> None:
        jump_s = self._clock.jump_s()
        if jump_s is not None:
            self._journal.append(events.ClockJumped(jump_s))
        now_s = time.time()  # before reading, so that a slow read is not counted as trainer silence
        self._journal.read()
        # Without the file of its own events the loop would decide the same again for ever.
        self._journal.check_exists()
        self._take_requests()
        self._take_settings()
        self._attempts.protect()
        for event in self._services.turn(self.state, now_s):
            self._journal.append(event)
        self._carry_out(find_request(self.state))
        self._carry_out(find_gpu_request(self.state, now_s))
        match decide(self.state, self._policy, now_s):
            # A launch that may not happen yet waits for one turn only, because what holds it back may end at any time.
            case actions.PlanLaunch() if not self._attempts.may_launch() or find_request(self.state) is not None:
                self._wait(now_s + TICK_S)
            case actions.PlanLaunch(attempt=attempt):
                self._attempts.launch(attempt)
            case actions.StartRole(attempt=attempt, role=role):
                self._attempts.start(attempt, role)
            case actions.AskStop(attempt=attempt, reason=reason):
                # The event first, so that a supervisor that takes over knows of a request that may have been made.
                self._journal.append(events.SignalSent(attempt, "stop_requested", reason))
                self._run_dir.stop_request(attempt).touch()
            case actions.AskSave(attempt=attempt, reason=reason):
                self._journal.append(events.SignalSent(attempt, "save_requested", reason))
                self._run_dir.save_request(attempt).touch()
            case actions.StartGpuTest(request_id=request_id, gpus=gpus):
                self._journal.append(events.GpuTestBegun(request_id, gpus))
                self._services.test_gpus(request_id, gpus)
            case actions.AnswerCommand(answer=answer):
                self._journal.append(answer)
            case actions.Pause(reason=reason, saves=saves):
                self._journal.append(events.StopAsked(reason, saves))
            case actions.Suspect(until_s=until_s):
                self._services.suspect(self.state)
                self._wait(until_s)
            case actions.FindHang() as found:
                self._check_silence(found, now_s)
            case actions.KeepEvidence(attempt=attempt):
                self._services.keep_evidence(self.state, attempt)
                self._wait(now_s + TICK_S)
            case actions.Signal(attempt=attempt, signal=name, reason=reason, roots=roots, workers=workers):
                self._journal.append(events.SignalSent(attempt, name, reason))
                # The stacks that SIGABRT writes would hide the cause in the logs, so the cause is read before.
                if name == "SIGABRT":
                    self._services.cause()
                self._children.signal(signal.Signals[name], roots=roots, workers=workers)
            case actions.GiveUp():
                self._attempts.finish(None)
            case actions.Shrink(attempt=attempt, micro_batch=micro_batch):
                self._journal.append(events.BatchShrunk(attempt, micro_batch))
            case actions.LeaveOut(gpu=gpu, reason=reason):
                self._journal.append(events.GpuLeftOut(gpu, reason))
            case actions.Close(state=end, exit_code=exit_code, reason=reason):
                for event in self._answers.close(self.state, finished=end == "finished"):
                    self._journal.append(event)
                self._journal.append(events.RunClosed(end, int(exit_code), reason))
            case actions.Wait(until_s=until_s):
                self._wait(until_s)
            case actions.Nothing():
                pass

    def _take_requests(self) -> None:
        # A list, because each event changes the state that the reader was called with.
        for found in list(islice(self._requests.take(self.state.attempt_number), MOST_REQUESTS)):
            match found:
                # A writer that saw no answer repeats its request, which must not be acted on twice.
                case Request(id=request_id) if request_id and request_id in self.state.answered:
                    pass
                case Request(kind=requests.STOP_REQUESTED, id=request_id):
                    self._journal.append(events.StopAsked(STOP_COMMAND))
                    if request_id:
                        what = "the run saves a checkpoint and ends"
                        self._journal.append(events.RequestAnswered(request_id, found.kind, "accepted", what))
                case Request():
                    for event in self._answers.answer(found, self.state):
                        self._journal.append(event)
                case RequestRefusal(path=path, why=why):
                    self._journal.append(events.RequestRefused(path, why))

    def _take_settings(self) -> None:
        """Go on with keys in [prime_train] that have changed, or that a way back has dropped."""
        newest = (self.state.settings_version, self.state.attempt_number)
        if newest == self._taken or not newest[0]:
            return
        self._taken = newest
        try:
            in_force = find_in_force(self._run, plans := tuple(read_plans(self._run_dir.settings)))
            values = {key: value for key, value in in_force.items() if key.startswith(OF_SUPERVISOR)}
            settings = (with_values(self._run, values) if values else self._run).prime_train
        except (TypeError, ValueError):  # another program wrote a plan, which no rank applies either
            return
        self._policy = change_limits(self._own_policy, settings.heartbeat) if values else self._own_policy
        self._services.take_settings(settings)
        for event in report_own(self._run, plans, self.state):
            self._journal.append(event)

    def _carry_out(self, request: Request | None) -> None:
        """Carry out a change that the policy makes, like a person's requests."""
        if request is not None:
            for event in self._answers.answer(request, self.state):
                self._journal.append(event)

    def release(self) -> None:
        """End every process. Each step runs even if the loop or another step raised."""
        with contextlib.ExitStack() as last:
            last.callback(self._journal.close)
            # Another supervisor may hold the run by then, if the lock was deleted: its processes stay.
            last.callback(process.sweep, self._run_dir.path, self._foreign_children, supervisor=own_identity())
            last.callback(self._end_services)
            last.callback(self._flush_backup)
            self._children.end_rest(gently=False)

    def _flush_backup(self) -> None:
        """Copy the last checkpoint of a closed run. A signal ends the wait."""
        if self.state.closed:
            for event in self._services.flush(self.state, self._has_signal):
                self._journal.append(event)

    def _has_signal(self) -> bool:
        with contextlib.suppress(Empty):
            while True:
                if isinstance(self.inbox.get_nowait(), signal.Signals):
                    return True
        return False

    def _end_services(self) -> None:
        for sent in self._services.end():
            self._journal.append_last(sent)

    def _check_silence(self, found: actions.FindHang, now_s: float) -> None:
        """A silence beyond its limit is a hang, unless the processes are seen at work and their extra time remains."""
        activity = self._services.activity(self.state)
        if activity is None:
            self._wait(now_s + TICK_S)
        elif activity.busy and found.until_s > now_s:
            self._journal.append(events.ActivitySeen(found.attempt, activity.what, found.until_s))
        else:
            silent_s = round(found.silent_s, 1)
            self._journal.append(events.HangFound(found.attempt, silent_s, found.limit_s, found.phase, activity.what))

    def _wait(self, until_s: float) -> None:
        """Wait for a message, until `until_s` or the next turn at the latest, and handle the message."""
        try:
            message = self.inbox.get(timeout=max(0.0, min(TICK_S, until_s - time.time())))
        except Empty:
            return
        match message:
            case process.Exited() as exited:
                if self._children.remove(exited):
                    self._attempts.finish(exited)
            case signal.Signals() as number:
                self._journal.append(events.StopAsked(number.name))
            case _:
                found = (
                    self._services.handle_message(self.state, message),
                    self._answers.handle_message(self.state, message),
                )
                for event in chain.from_iterable(found):
                    self._journal.append(event)
