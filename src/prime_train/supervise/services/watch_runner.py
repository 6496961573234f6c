"""Creates and runs every watch, and returns the alarms that are new and those that are over. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir, append_traceback
from prime_train.events import AlarmCleared, AlarmRaised
from prime_train.spec import PrimeTrain, RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context, Program
from prime_train.supervise.watches.watch import Alarm, LiveWatch, RunningWatches, Watch


def create_watches(run: RunSpec, run_dir: RunDir, program: Program) -> RunningWatches:
    """One watch for each key that is not off, and the watches of the program."""
    context = Context(run, run_dir, program)
    answers = asdict(run.prime_train.watch)
    found = {key: _create(key, context) for key, answer in answers.items() if answer != "off"}
    gpu, disk = found.pop("gpu", None), found.pop("disk", None)
    own = (watch for watch in found.values() if watch is not None)
    return RunningWatches(gpu, disk, (*program.watches(run, run_dir), *own))  # type: ignore[arg-type]


def _create(key: str, context: Context) -> Watch | None:
    name = f"prime_train.supervise.watches.{key}"
    spec = find_spec(name)
    if spec is None:
        return None
    module = import_module(f"{name}.watch" if spec.submodule_search_locations else name)
    watch: Watch | None = module.create(context)
    return watch


LOOK_EVERY_S = 1.0
Key = tuple[str, str, str]


class WatchRunner:
    """The watches of one supervision. A watch that raises is disabled, and an alarm reports it."""

    def __init__(self, watches: Sequence[Watch], run_dir: RunDir) -> None:
        self._watches = tuple(watches)
        self._run_dir = run_dir
        self._failed: dict[str, Alarm] = {}
        self._found: set[Key] = set()  # at the last look
        self._looked_s = 0.0

    def begin(self) -> None:
        """Start every watch. Call it from the main thread: see process.spawn."""
        for watch in self._watches:
            try:
                watch.begin()
            except Exception as error:  # every kind, because no watch may end the run
                self._disable(watch, error)

    def add(self, watch: Watch) -> None:
        """Add a watch that has begun already; it replaces a watch of the same name."""
        self._watches = (*(other for other in self._watches if other.name != watch.name), watch)
        self._failed.pop(watch.name, None)

    def take_settings(self, settings: PrimeTrain) -> None:
        """Have every watch judge by settings that have changed."""
        for watch in self._watches:
            if isinstance(watch, LiveWatch):
                watch.take_settings(settings)

    def look(self, state: State, now_s: float) -> Iterator[AlarmRaised | AlarmCleared]:
        """The changes, at most once in LOOK_EVERY_S. An alarm that asks for a restart is raised in each attempt."""
        if abs(now_s - self._looked_s) < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        found = {alarm.key: alarm for alarm in self._alarms(self._watches, state, now_s)}
        yield from _find_new(found, state)
        for key in sorted(self._found - found.keys() & {active.key for active in state.alarms}):
            yield AlarmCleared(state.live.number if state.live else 0, *key)
        self._found = set(found)

    def last_look(self, state: State, now_s: float) -> Iterator[AlarmRaised]:
        """The alarms of the GPU watch for an attempt whose processes have ended.

        The driver often reports the cause later. The other watches would only report that nothing answers.
        """
        gpu = [watch for watch in self._watches if watch.name == "gpu"]
        found = {alarm.key: alarm for alarm in self._alarms(gpu, state, now_s)}
        self._found |= found.keys()  # so that the next look can clear them
        yield from _find_new(found, state)

    def _alarms(self, watches: Sequence[Watch], state: State, now_s: float) -> Iterator[Alarm]:
        for watch in watches:
            if watch.name in self._failed:
                yield self._failed[watch.name]
                continue
            try:
                yield from watch.look(state, now_s)
            except Exception as error:  # as above
                self._disable(watch, error)
                yield self._failed[watch.name]

    def _disable(self, watch: Watch, error: Exception) -> None:
        name, log = watch.name, self._run_dir.watches / f"{watch.name}.log"
        append_traceback(log, error)
        what = f"the {name} watch failed and is disabled: {type(error).__name__}: {error}"
        why = "its part of the run is not watched any more"
        fix = "stop the run and start the command again; please report the traceback"
        self._failed[name] = Alarm(name, "watch_failed", name, "alert", "unknown", what, why, fix, str(log))

    def processes(self) -> tuple[Identity, ...]:
        return tuple(identity for watch in self._watches for identity in watch.processes())

    def end(self) -> None:
        """End every watch, even if another one fails; its processes are then ended with the run."""
        for watch in self._watches:
            try:
                watch.end()
            except Exception as error:  # as above
                self._disable(watch, error)


def _find_new(found: Mapping[Key, Alarm], state: State) -> Iterator[AlarmRaised]:
    """The alarms that are not active yet; an alarm that ends an attempt is new in each attempt."""
    attempt = state.live.number if state.live else 0
    actives = {active.key: active.alarm for active in state.alarms}
    for key, alarm in found.items():
        before = actives.get(key)
        ends = alarm.answer in ("restart", "pause")
        if before is None or before.answer != alarm.answer or (ends and before.attempt != attempt):
            yield AlarmRaised(attempt, **asdict(alarm), step=state.step)
