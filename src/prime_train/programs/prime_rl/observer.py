"""Writes the trainer's kinds of events for prime-rl, which writes none: reads its logs, metrics and checkpoints.

Each attempt has a thread, because a file system that does not answer must not block the supervisor. The thread starts,
signals and deletes nothing. judge.py decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.diagnose.cause import judge
from prime_train.diagnose.hits import Scan
from prime_train.diagnose.log_scanner import Scanner
from prime_train.events import EventLog, TrainerFailed, TrainerStopped
from prime_train.programs.prime_rl import run_directory
from prime_train.programs.prime_rl.judge import (
    KnownPrimeRlRun,
    PrimeRlHistory,
    PrimeRlLimits,
    PrimeRlSample,
    find_newest_complete,
    finish,
    take,
)
from prime_train.programs.prime_rl.lines import Ended, PartFailed
from prime_train.programs.prime_rl.sources import INFERENCE, TAIL, Tails, list_parts
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.supervise.core.attempt_end import read_tail
from prime_train.supervise.core.state import State
from prime_train.supervise.evidence.diagnose import SIGNALS, find_killed_rank, find_signal_number, name_signal
from prime_train.supervise.watches.watch import Alarm

WATCH = "prime_rl"


def list_alarms(
    run: KnownPrimeRlRun, memory: PrimeRlHistory, now_s: float, limits: PrimeRlLimits, logs: Mapping[str, str]
) -> tuple[Alarm, ...]:
    """Everything that is wrong at `now_s`. `logs`: the log of each part, for the messages."""
    if memory.finished or memory.failed is not None or memory.got_signal or memory.ended_s is not None:
        return ()
    missing, unreported = _judge_servers(memory, now_s, limits, logs), _judge_errors(memory, now_s, limits, logs)
    return (*missing, *unreported, *_judge_start(run, memory))


def _judge_servers(
    memory: PrimeRlHistory, now_s: float, limits: PrimeRlLimits, logs: Mapping[str, str]
) -> Iterator[Alarm]:
    for server, since_s in memory.gone:
        if now_s - since_s < limits.gone_s:
            continue
        what = f"{server} has ended, and the launcher continues without it"
        why = "for prime-rl's launcher, exit code 0 is no error: trainer and orchestrator would wait forever"
        fix = "read its log; the run continues from the newest complete checkpoint"
        yield Alarm(WATCH, "service_gone", server, "restart", "unknown", what, why, fix, logs.get(server, ""))


def _judge_errors(
    memory: PrimeRlHistory, now_s: float, limits: PrimeRlLimits, logs: Mapping[str, str]
) -> Iterator[Alarm]:
    """An environment may fail sometimes: this is harmless as long as rollouts arrive.

    A step or rollout shortly after the error proves nothing: it was in flight when the error was raised.
    """
    for server, at_s in memory.env_errors:
        quiet_s = now_s - max(at_s, memory.moved_s)
        if memory.moved_s - at_s > limits.env_error_s or quiet_s < limits.env_error_s:
            continue
        what = f"{server} raised an exception, and no rollout has arrived for {quiet_s:.0f} s"
        why = "prime-rl does not report errors of an environment's worker to the orchestrator, which then waits forever"
        fix = "read the traceback in its log; test the environment alone"
        yield Alarm(WATCH, "env_error", server, "restart", "unknown", what, why, fix, logs.get(server, ""))


def _judge_start(run: KnownPrimeRlRun, memory: PrimeRlHistory) -> Iterator[Alarm]:
    if memory.scratch:
        what = f"it should resume from step {run.resume_step}, but began from scratch: {memory.scratch}"
        why = "prime-rl only warns if it finds no checkpoint, and would overwrite those of the run"
        fix = "check that the checkpoint folders are below output_dir and run.name"
        yield Alarm(WATCH, "started_over", "trainer", "restart", "env", what, why, fix)


_EVERY_S = 0.5
_LOOK_AROUND_S = 2.0  # for new logs and checkpoints
_END_S = 10.0  # for the thread to end; a thread that waits for a file system is left behind
_LONGEST_LINE = 300


class PrimeRlObserver:
    """One attempt of prime-rl. It is a Watch too: `look` returns the alarms that stand.

    Call `begin` before the launcher starts, so that old files are not taken for new ones; call `end` when all processes
    are gone and before the attempt is judged, so that its last event is written.
    """

    name = WATCH

    def __init__(
        self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int = 0, limits: PrimeRlLimits | None = None
    ) -> None:
        self._spec = run
        self._run_dir = run_dir
        self._limits = limits or PrimeRlLimits()
        has_orchestrator = prime_rl_of(run).rollout is not None
        self._run = KnownPrimeRlRun(attempt, run.run.max_steps, resume_step, has_orchestrator=has_orchestrator)
        self._guard: Identity | None = None
        self._memory = PrimeRlHistory()
        self._is_stopping = False
        self._is_being_ended = False
        self._failed = False
        self._servers: dict[Identity, str] = {}
        self._living = 0  # parts that run
        self._looked_s = float("-inf")
        self._alarms: tuple[Alarm, ...] = ()
        self._error: Exception | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()  # held through one turn
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Read the existing checkpoints, and start the thread."""
        folder = run_directory.find_folder(self._spec)
        self._log = EventLog(self._run_dir.events, f"prime_rl-{self._run.attempt:03d}")
        self._own_log = self._run_dir.log(self._run.attempt, run_directory.ROLE)
        self._tails = Tails(folder / "metrics.jsonl", self._own_log)
        first = PrimeRlSample(time.monotonic(), checkpoints=tuple(run_directory.list_checkpoints(self._spec)))
        self._memory, _ = take(self._run, self._memory, first, self._limits)
        self._thread = threading.Thread(target=self._watch, name=f"prime-rl-{self._run.attempt}", daemon=True)
        self._thread.start()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """The faults that the launcher does not notice. Raises the error that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error
        self._read_state(state)
        is_live = state.live is not None and state.live.number == self._run.attempt
        return self._alarms if is_live else ()

    def _read_state(self, state: State) -> None:
        """Read the guard of the launcher, and whether the supervisor is ending the attempt."""
        live = state.live
        if live is None or live.number != self._run.attempt:
            return
        self._is_stopping = state.stop_requested_s is not None
        self._is_being_ended = live.pending_kill is not None  # the supervisor then knows the cause
        child = next((child for child in live.children if child.role == run_directory.ROLE), None)
        self._guard = Identity(child.pid, child.start_ticks) if child is not None else None

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self, state: State | None = None) -> None:
        """Read the rest, write how it ended, and stop. `state`: the present state of the supervisor."""
        if self._thread is None:
            return
        if state is not None:
            self._read_state(state)
        self._over.set()
        self._thread.join(_END_S)
        if not self._lock.acquire(timeout=0.0 if self._thread.is_alive() else 1.0):
            return
        try:
            if self._error is None:
                self._looked_s = float("-inf")
                self._turn()
                self._write_end()
        except Exception as error:  # as in the thread: a failed read ends no run
            self._error = error
        finally:
            self._thread = None
            self._lock.release()
            self._log.close()

    # --- the thread ---

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                with self._lock:
                    self._turn()
            except Exception as error:  # of any kind: `look` raises it, so that the end of the thread is noticed
                self._error = error
                return

    def _turn(self) -> None:
        now_s = time.monotonic()
        is_due = now_s - self._looked_s >= _LOOK_AROUND_S
        if is_due:
            self._looked_s = now_s
            self._tails.follow(self._list_logs())
        messages, rows = self._tails.take_messages(), self._tails.take_rows()
        servers = self._list_servers()
        sample = PrimeRlSample(now_s, messages, rows, servers=servers, expected=self._list_short_servers())
        if is_due or any(isinstance(message, Ended) for _, message in messages):  # the last checkpoint is then complete
            sample = replace(sample, checkpoints=tuple(run_directory.list_checkpoints(self._spec)))
        silent_s = max(0.0, time.time() - self._tails.changed_s)
        self._memory, events = take(self._run, self._memory, replace(sample, written_s=now_s - silent_s), self._limits)
        for event in events:
            self._log.append(event)
        if self._memory.failed is not None and not self._failed and not self._is_stopping:
            self._write_failure(self._memory.failed)
        self._alarms = () if self._is_stopping else self._list_alarms(now_s)

    def _list_servers(self) -> tuple[str, ...] | None:
        """The servers that run; None if the launcher itself is gone."""
        found = list_parts(self._guard) if self._guard is not None else None
        if found is None:
            return None
        for part in found:
            if part.is_server and part.identity not in self._servers:
                taken = part.name in self._servers.values()
                self._servers[part.identity] = f"{part.name} (process {part.identity.pid})" if taken else part.name
        self._living = sum(part.name != TAIL for part in found)
        there = {part.identity for part in found}
        return tuple(name for identity, name in self._servers.items() if identity in there)

    def _list_short_servers(self) -> tuple[str, ...]:
        """Inference, if it ended before it was seen: the launcher opens a log for each part that it starts."""
        started = set(self._tails.paths) - {"launcher"}
        is_short = "orchestrator" in started and INFERENCE in started and self._living < len(started)
        return (INFERENCE,) if is_short and INFERENCE not in self._servers.values() else ()

    def _list_alarms(self, now_s: float) -> tuple[Alarm, ...]:
        """The alarms, with the answers of the config."""
        answers = self._spec.prime_train.watch
        by_name = {"service_gone": answers.engine, "env_error": answers.hang}
        found = list_alarms(self._run, self._memory, now_s, self._limits, self._tails.paths)
        with_answer = ((alarm, by_name.get(alarm.name, alarm.answer)) for alarm in found)
        return tuple(replace(alarm, answer=answer) for alarm, answer in with_answer if answer != "off")

    # --- how it ended ---

    def _write_end(self) -> None:
        """Write how the attempt ended, because the launcher's exit code is 1 after a stop and after a crash."""
        memory = self._memory
        if memory.finished or self._failed or self._is_being_ended:
            return
        if memory.ended_s is not None and find_newest_complete(memory) >= self._run.max_steps:
            _, events = finish(self._run, memory)  # the last checkpoint is complete, so nothing is lost
            for event in events:
                self._log.append(event)
        elif self._is_stopping:
            self._log.append(TrainerStopped(self._run.attempt, find_newest_complete(memory)))
        elif memory.got_signal:
            what, why = "another process ended the launcher", "it got SIGTERM or Ctrl-C, and this supervisor sent none"
            fix = "find out what ends processes here: a person, the job scheduler, a limit of the container"
            self._log.append(TrainerFailed(self._run.attempt, 0, "signal", what, why, fix, str(self._own_log)))
        else:
            self._write_failure(None)

    def _write_failure(self, failed: PartFailed | None) -> None:
        """Report a failed part at once, because the launcher takes long to end the others. The logs have the reason."""
        self._tails.follow(self._list_logs())  # a log may be newer than the turn
        killed = find_killed_rank(read_tail(Path(self._tails.paths.get("trainer", ""))))
        if killed is None and failed is None:
            return
        self._failed = True
        number = 0 if failed is None else find_signal_number(failed.code)
        if killed is not None:  # the log names the rank, and the launcher only its part
            number = killed[1]
        part = "trainer" if killed is not None or failed is None else failed.part
        where = self._tails.paths.get(part, str(self._own_log))
        if number:
            process = f"rank {killed[0]}" if killed is not None else part
            why, fix = SIGNALS.get(number, ("", ""))
            what = f"{process} was killed by signal {name_signal(number)}"
            self._log.append(TrainerFailed(self._run.attempt, 0, "signal", what, why, fix, where))
        elif failed is not None:
            found = judge([_scan(path) for path in self._list_logs()]).cause
            what, why = f"{part} failed with exit code {failed.code}", "the launcher reports no more about it"
            if found is not None and found.raised:
                what, why, where = found.text[:_LONGEST_LINE], what, f"{found.file}:{found.line}"
            self._log.append(TrainerFailed(self._run.attempt, 0, "unknown", what, why, f"read {where}", where))

    def _list_logs(self) -> list[Path]:
        return run_directory.list_logs(self._spec, self._run_dir, self._run.attempt)


def _scan(path: Path) -> Scan:
    scanner = Scanner(str(path))
    scanner.feed(read_tail(path).encode())
    return scanner.finish()
