"""Writes the trainer's kinds of events for prime-rl, which writes none: reads its logs, metrics and checkpoints.

A thread per attempt, because a file system that does not answer must not hold up the supervisor. It starts, signals and
deletes nothing. judge.py and alarms.py decide what follows from what it reads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.diagnose.cause import judge
from prime_train.diagnose.log_scanner import Scanner
from prime_train.diagnose.scan_result import Scan
from prime_train.events import Event, EventLog, TrainerFailed, TrainerStopped
from prime_train.programs.prime_rl import layout
from prime_train.programs.prime_rl.alarms import WATCH, alarms
from prime_train.programs.prime_rl.judge import Limits, Memory, Run, Sample, finished, newest_whole, take
from prime_train.programs.prime_rl.lines import Ended, PartFailed
from prime_train.programs.prime_rl.parts import INFERENCE, TAIL, parts
from prime_train.programs.prime_rl.tails import Tails
from prime_train.spec import RunSpec
from prime_train.supervise.diagnose import tail
from prime_train.supervise.exit_signals import killed_rank, meaning, name_of, number_of
from prime_train.supervise.state import State
from prime_train.supervise.watches.watch import Alarm

_EVERY_S = 0.5
_LOOK_AROUND_S = 2.0  # for logs and checkpoints that are new
_END_S = 10.0  # for the thread to end; one that waits for a file system is left behind
_LONGEST_LINE = 300


class Observer:
    """One attempt of prime-rl. It is a Watch as well: `look` gives the alarms that stand.

    `begin` before the launcher starts, so that what was there before is known from what is new; `end` when all of its
    processes are gone and before the attempt is judged, so that its last word is heard.
    """

    name = WATCH

    def __init__(
        self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int = 0, limits: Limits | None = None
    ) -> None:
        self._spec = run
        self._run_dir = run_dir
        self._limits = limits or Limits()
        self._run = Run(attempt, run.run.max_steps, resume_step, has_orchestrator=run.rollout is not None)
        self._guard: Identity | None = None
        self._memory = Memory()
        self._stop_asked = False
        self._doomed = False
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
        """Take note of what is there, and start to look."""
        folder = layout.folder(self._spec)
        self._log = EventLog(self._run_dir.events, f"prime_rl-{self._run.attempt:03d}")
        self._own_log = self._run_dir.log(self._run.attempt, layout.ROLE)
        self._tails = Tails(folder / "metrics.jsonl", self._own_log)
        found = tuple(layout.checkpoints(self._spec))
        self._memory, _ = take(self._run, self._memory, Sample(time.monotonic(), checkpoints=found), self._limits)
        self._thread = threading.Thread(target=self._watch, name=f"prime-rl-{self._run.attempt}", daemon=True)
        self._thread.start()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """What the launcher does not notice. Raises what has ended the thread, if anything has."""
        del now_s
        if self._error is not None:
            raise self._error
        self._hear(state)
        is_live = state.live is not None and state.live.number == self._run.attempt
        return self._alarms if is_live else ()

    def _hear(self, state: State) -> None:
        """Who guards the launcher, and whether it was we who asked it to end."""
        live = state.live
        if live is None or live.number != self._run.attempt:
            return
        self._stop_asked = state.stop_asked_s is not None
        self._doomed = live.doom is not None  # what the supervisor ends an attempt for is its cause
        child = next((child for child in live.children if child.role == layout.ROLE), None)
        self._guard = Identity(child.pid, child.start_ticks) if child is not None else None

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self, state: State | None = None) -> None:
        """Read the rest, say how it ended, and stop. `state`: as the supervisor knows it now."""
        if self._thread is None:
            return
        if state is not None:
            self._hear(state)
        self._over.set()
        self._thread.join(_END_S)
        if not self._lock.acquire(timeout=0.0 if self._thread.is_alive() else 1.0):
            return
        try:
            if self._error is None:
                self._looked_s = float("-inf")
                self._turn()
                self._last_word()
        except Exception as error:  # as in the thread: a run is not ended for what is read of it
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
            except Exception as error:  # of whatever kind: `look` tells it, where a dead thread would be silence
                self._error = error
                return

    def _turn(self) -> None:
        now_s = time.monotonic()
        is_due = now_s - self._looked_s >= _LOOK_AROUND_S
        if is_due:
            self._looked_s = now_s
            self._tails.follow(layout.logs(self._spec, self._run_dir, self._run.attempt))
        heard, rows = self._tails.heard(), self._tails.rows()
        servers = self._running_servers()
        sample = Sample(now_s, heard, rows, servers=servers, expected=self._started_servers())
        if is_due or any(isinstance(what, Ended) for _, what in sample.heard):  # the last checkpoint is whole by then
            sample = replace(sample, checkpoints=tuple(layout.checkpoints(self._spec)))
        silent_s = max(0.0, time.time() - self._tails.changed_s)
        self._memory, events = take(self._run, self._memory, replace(sample, written_s=now_s - silent_s), self._limits)
        for event in events:
            self._say(event)
        if self._memory.failed is not None and not self._failed and not self._stop_asked:
            self._account(self._memory.failed)
        self._alarms = () if self._stop_asked else self._allowed(now_s)

    def _say(self, event: Event) -> None:
        self._log.append(event)

    def _running_servers(self) -> tuple[str, ...] | None:
        """The servers that run; None where the launcher itself is gone, which says it all."""
        found = parts(self._guard) if self._guard is not None else None
        if found is None:
            return None
        for part in found:
            if part.is_server and part.identity not in self._servers:
                taken = part.name in self._servers.values()
                self._servers[part.identity] = f"{part.name} (process {part.identity.pid})" if taken else part.name
        self._living = sum(part.name != TAIL for part in found)
        there = {part.identity for part in found}
        return tuple(name for identity, name in self._servers.items() if identity in there)

    def _started_servers(self) -> tuple[str, ...]:
        """Inference, where a part has ended that was never seen: the launcher opens a log for each that it starts."""
        started = set(self._tails.paths) - {"launcher"}
        is_short = "orchestrator" in started and INFERENCE in started and self._living < len(started)
        return (INFERENCE,) if is_short and INFERENCE not in self._servers.values() else ()

    def _allowed(self, now_s: float) -> tuple[Alarm, ...]:
        """The alarms, with the answer that the config gives to their kind."""
        asked = self._spec.prime_train.watch
        wanted = {"service_gone": asked.engine, "env_error": asked.hang}
        found = alarms(self._run, self._memory, now_s, self._limits, self._tails.paths)
        with_answer = ((alarm, wanted.get(alarm.name, alarm.answer)) for alarm in found)
        return tuple(replace(alarm, answer=answer) for alarm, answer in with_answer if answer != "off")

    # --- how it ended ---

    def _last_word(self) -> None:
        """What the exit code of the launcher does not tell: it is 1 after a request to end as after a crash."""
        memory = self._memory
        if memory.finished or self._failed or self._doomed:
            return
        if memory.ended_s is not None and newest_whole(memory) >= self._run.max_steps:
            _, events = finished(self._run, memory)  # the last checkpoint is whole: what came after it loses nothing
            for event in events:
                self._say(event)
        elif self._stop_asked:
            self._say(TrainerStopped(self._run.attempt, newest_whole(memory)))
        elif memory.told_to_end:
            self._say(
                self._failure(
                    "signal",
                    "the launcher was told to end by somebody else",
                    "it got SIGTERM or Ctrl-C, and this supervisor sent none",
                    "look who ends processes here: a person, the job scheduler, a limit of the container",
                    str(self._own_log),
                )
            )
        else:
            self._account(None)

    def _account(self, told: PartFailed | None) -> None:
        """That a part has failed, at once: the launcher needs a while to end the rest. Why, the logs tell."""
        killed = killed_rank(tail(Path(self._tails.paths.get("trainer", ""))))
        if killed is None and told is None:
            return
        self._failed = True
        number = killed[1] if killed is not None else number_of(told.code) if told is not None else 0
        part = "trainer" if killed is not None or told is None else told.part
        where = self._tails.paths.get(part, str(self._own_log))
        if number:
            who = f"rank {killed[0]}" if killed is not None else part
            why, fix = meaning(number)
            self._say(self._failure("signal", f"{who} was killed by signal {name_of(number)}", why, fix, where))
        elif told is not None:
            found = judge([_scanned(path) for path in layout.logs(self._spec, self._run_dir, self._run.attempt)]).cause
            what, why = f"{part} failed with exit code {told.code}", "the launcher tells no more of it"
            if found is not None and found.raised:
                what, why, where = found.text[:_LONGEST_LINE], what, f"{found.file}:{found.line}"
            self._say(self._failure("unknown", what, why, f"read {where}", where))

    def _failure(self, cause_class: str, what: str, why: str, fix: str, where: str) -> TrainerFailed:
        return TrainerFailed(self._run.attempt, 0, cause_class, what, why, fix, where)


def _scanned(path: Path) -> Scan:
    scanner = Scanner(str(path))
    scanner.feed(tail(path).encode())
    return scanner.finish()
