"""Asks every watch what is wrong, and says what is new and what is over. Decides nothing."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmCleared, AlarmRaised
from prime_train.supervise.state import State
from prime_train.supervise.watches.watch import Alarm, Watch

LOOK_EVERY_S = 1.0
Key = tuple[str, str, str]


class Watching:
    """The watches of one supervision. A watch that raises is disabled, and an alarm reports it."""

    def __init__(self, watches: Sequence[Watch], run_dir: RunDir) -> None:
        self._watches = tuple(watches)
        self._run_dir = run_dir
        self._failed: dict[str, Alarm] = {}
        self._found: set[Key] = set()  # at the look before
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
        self._looked_s = now_s
        found = {alarm.key: alarm for alarm in self._alarms(self._watches, state, now_s)}
        yield from _new(found, state)
        for key in sorted(self._found - found.keys() & {standing.key for standing in state.alarms}):
            yield AlarmCleared(state.live.number if state.live else 0, *key)
        self._found = set(found)

    def last_look(self, state: State, now_s: float) -> Iterator[AlarmRaised]:
        """What the GPU watch says of an attempt whose processes are gone: they often end before the driver tells why.

        The others are not asked: that nothing answers any more is no news.
        """
        gpu = [watch for watch in self._watches if watch.name == "gpu"]
        found = {alarm.key: alarm for alarm in self._alarms(gpu, state, now_s)}
        self._found |= found.keys()  # else the next look would not miss what is over by then
        yield from _new(found, state)

    def _alarms(self, watches: Sequence[Watch], state: State, now_s: float) -> Iterator[Alarm]:
        for watch in watches:
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
        with contextlib.suppress(OSError):  # the alarm says what failed where its traceback finds no room
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
        """End every watch. One that cannot keeps none of the others; what it has started is swept away with the run."""
        for watch in self._watches:
            try:
                watch.end()
            except Exception as error:  # as above
                self._rest(watch, error)


def _new(found: Mapping[Key, Alarm], state: State) -> Iterator[AlarmRaised]:
    """The alarms that do not stand yet; one that ends an attempt is new in each."""
    attempt = state.live.number if state.live else 0
    standing = {standing.key: standing.alarm for standing in state.alarms}
    for key, alarm in found.items():
        before = standing.get(key)
        if before is None or before.answer != alarm.answer or (_ends(alarm) and before.attempt != attempt):
            yield _raised(alarm, attempt, state.step)


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
