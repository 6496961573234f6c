"""Asks every watch what is wrong, and says what is new and what is over. Decides nothing."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from prime_train.events import AlarmCleared, AlarmRaised
from prime_train.rundir import RunDir
from prime_train.supervise.process import Identity
from prime_train.supervise.state import State
from prime_train.supervise.watches.watch import Alarm, Watch

LOOK_EVERY_S = 1.0


class Watching:
    """The watches of one supervision. One that fails itself rests, which is told as an alarm of its own."""

    def __init__(self, watches: Sequence[Watch], run_dir: RunDir) -> None:
        self._watches = tuple(watches)
        self._run_dir = run_dir
        self._failed: dict[str, Alarm] = {}
        self._found: set[tuple[str, str, str]] = set()  # at the look before
        self._looked_s = 0.0

    def begin(self) -> None:
        """Start every watch. Call it from the main thread: see process.spawn."""
        for watch in self._watches:
            try:
                watch.begin()
            except Exception as error:  # of whatever kind: no watch may take the run with it
                self._rest(watch, error)

    def add(self, watch: Watch) -> None:
        """One more, that has begun already; in the place of one of the same name."""
        self._watches = (*(other for other in self._watches if other.name != watch.name), watch)
        self._failed.pop(watch.name, None)

    def look(self, state: State, now_s: float) -> Iterator[AlarmRaised | AlarmCleared]:
        """What has changed, at most once in LOOK_EVERY_S. What asks for a restart is raised in each attempt."""
        if abs(now_s - self._looked_s) < LOOK_EVERY_S:
            return
        yield from self.look_now(state, now_s)

    def look_now(self, state: State, now_s: float) -> Iterator[AlarmRaised | AlarmCleared]:
        """The same, however lately it was done: an attempt has ended, and a watch may know why."""
        self._looked_s = now_s
        attempt = state.live.number if state.live else 0
        found = {alarm.key: alarm for alarm in self._alarms(state, now_s)}
        standing = {standing.key: standing.alarm for standing in state.alarms}
        for key, alarm in found.items():
            before = standing.get(key)
            if before is None or before.answer != alarm.answer or (_ends(alarm) and before.attempt != attempt):
                yield _raised(alarm, attempt, state.step)
        for key in sorted(self._found - found.keys() & standing.keys()):
            yield AlarmCleared(attempt, *key)
        self._found = set(found)

    def _alarms(self, state: State, now_s: float) -> Iterator[Alarm]:
        for watch in self._watches:
            if watch.name in self._failed:
                yield self._failed[watch.name]
                continue
            try:
                yield from watch.look(state, now_s)
            except Exception as error:  # as above
                self._rest(watch, error)
                yield self._failed[watch.name]

    def _rest(self, watch: Watch, error: Exception) -> None:
        log = self._log(watch)
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
        what = f"the {watch.name} watch failed and rests: {type(error).__name__}: {error}"
        why = "what it looks after is not watched in this run any more"
        fix = "start the command again after the run has been stopped; please report the traceback"
        self._failed[watch.name] = Alarm(
            watch.name, "watch_failed", watch.name, "alert", "unknown", what, why, fix, str(log)
        )

    def _log(self, watch: Watch) -> Path:
        return self._run_dir.watches / f"{watch.name}.log"

    def processes(self) -> tuple[Identity, ...]:
        return tuple(identity for watch in self._watches for identity in watch.processes())

    def end(self) -> None:
        for watch in self._watches:
            watch.end()


def _ends(alarm: Alarm) -> bool:
    return alarm.answer in ("restart", "pause")


def _raised(alarm: Alarm, attempt: int, step: int) -> AlarmRaised:
    return AlarmRaised(
        attempt,
        alarm.watch,
        alarm.name,
        alarm.subject,
        alarm.answer,
        alarm.cause_class,
        alarm.what,
        alarm.why,
        alarm.fix,
        alarm.where,
        step,
    )
