"""Writes the trainer's kinds of events for prime-rl, which writes none: reads its logs, metrics and checkpoints.

Its thread starts, signals and deletes nothing. judge.py decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.diagnose.cause import judge
from prime_train.diagnose.hits import Scan
from prime_train.diagnose.log_scanner import Scanner
from prime_train.events import TrainerFailed, TrainerStopped
from prime_train.programs.log_observer import LogObserver
from prime_train.programs.prime_rl import run_directory
from prime_train.programs.prime_rl.judge import (
    KnownPrimeRlRun,
    PrimeRlHistory,
    PrimeRlLimits,
    PrimeRlSample,
    finish,
    take,
)
from prime_train.programs.prime_rl.lines import Ended, PartFailed
from prime_train.programs.prime_rl.sources import INFERENCE, TAIL, Tails, list_parts
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.supervise.core.attempt_end import read_tail
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


_LOOK_AROUND_S = 2.0  # for new logs and checkpoints
_LONGEST_LINE = 300


class PrimeRlObserver(LogObserver):
    """One attempt of prime-rl."""

    def __init__(
        self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int = 0, limits: PrimeRlLimits | None = None
    ) -> None:
        super().__init__(WATCH, run_dir, attempt, run_directory.ROLE)
        self._spec = run
        self._limits = limits or PrimeRlLimits()
        has_orchestrator = prime_rl_of(run).rollout is not None
        self._run = KnownPrimeRlRun(attempt, run.run.max_steps, resume_step, has_orchestrator=has_orchestrator)
        self._memory = PrimeRlHistory()
        self._failed = False
        self._servers: dict[Identity, str] = {}
        self._living = 0  # parts that run
        self._looked_s = float("-inf")

    def _prepare(self) -> None:
        folder = run_directory.find_folder(self._spec)
        self._own_log = self._run_dir.log(self._run.attempt, run_directory.ROLE)
        self._tails = Tails(folder / "metrics.jsonl", self._own_log)
        first = PrimeRlSample(time.monotonic(), checkpoints=tuple(run_directory.list_checkpoints(self._spec)))
        self._memory, _ = take(self._run, self._memory, first, self._limits)

    def _turn(self, *, is_last: bool) -> None:
        now_s = time.monotonic()
        is_due = is_last or now_s - self._looked_s >= _LOOK_AROUND_S
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
        found = list_parts(self._process) if self._process is not None else None
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

    def _write_end(self, returncode: int | None) -> None:
        """Write how the attempt ended, because the launcher's exit code is 1 after a stop and after a crash."""
        del returncode
        memory = self._memory
        if memory.finished or self._failed or self._is_being_ended:
            return
        if memory.ended_s is not None and memory.saved.newest_complete >= self._run.max_steps:
            _, events = finish(self._run, memory)  # the last checkpoint is complete, so nothing is lost
            for event in events:
                self._log.append(event)
        elif self._is_stopping:
            self._log.append(TrainerStopped(self._run.attempt, memory.saved.newest_complete))
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
