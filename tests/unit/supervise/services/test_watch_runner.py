"""Changes of alarms become events, and a watch that fails ends nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AlarmCleared,
    AlarmRaised,
    AttemptEnded,
    ChildStarted,
    Event,
    LaunchAsked,
    Record,
    RunOpened,
)
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State
from prime_train.supervise.services.watch_runner import WatchRunner
from prime_train.supervise.watches.watch import Alarm

HOT = Alarm("gpu", "throttled", "GPU 0", "alert", "hardware", "it is hot", "dust", "clean it")
LOST = Alarm("gpu", "gpu_lost", "GPU 1", "restart", "hardware", "it is lost", "a riser", "reseat it", "GPU-1")


@dataclass
class Reports:
    """A watch that returns given alarms."""

    alarms: list[Alarm] = field(default_factory=list)
    fails_at: str = ""
    name: str = "gpu"
    is_over: bool = False

    def begin(self) -> None:
        if self.fails_at == "begin":
            raise ValueError("a field is missing")

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        del state, now_s
        if self.fails_at == "look":
            raise ValueError("a field is missing")
        return tuple(self.alarms)

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self) -> None:
        self.is_over = True
        if self.fails_at == "end":
            raise ValueError("it does not end")


class World:
    """A supervisor's state, and the events it writes."""

    def __init__(self, path: Path, *watches: Reports) -> None:
        self.watching = WatchRunner(watches, RunDir(path))
        self.watching.begin()
        self.state = State()
        self.now_s = 1000.0
        self.seq = 0
        self.report(RunOpened("r", 1, 100, "0"))

    def report(self, *events: Event) -> None:
        for event in events:
            self.state = fold(self.state, Record(self.now_s, "supervisor", self.seq, event))
            self.seq += 1

    def look(self) -> list[Event]:
        self.now_s += 2.0
        found: list[Event] = list(self.watching.look(self.state, self.now_s))
        self.report(*found)
        return found

    def attempt(self, number: int) -> None:
        self.report(LaunchAsked(number, 0), ChildStarted(number, "trainer", number, 1, "log"))


def test_an_alarm_is_raised_once_and_cleared_once(tmp_path: Path) -> None:
    watch = Reports([HOT])
    world = World(tmp_path, watch)
    world.attempt(1)
    (raised,) = world.look()
    assert isinstance(raised, AlarmRaised)
    assert (raised.name, raised.attempt, raised.answer) == ("throttled", 1, "alert")
    assert world.look() == []
    watch.alarms.clear()
    assert world.look() == [AlarmCleared(1, "gpu", "throttled", "GPU 0")]
    assert world.state.alarms == ()


def test_it_looks_no_more_often_than_once_a_second(tmp_path: Path) -> None:
    world = World(tmp_path, Reports([HOT]))
    assert len(world.look()) == 1
    assert list(world.watching.look(State(), world.now_s + 0.5)) == []


def test_an_alarm_that_becomes_worse_is_raised_again(tmp_path: Path) -> None:
    watch = Reports([HOT])
    world = World(tmp_path, watch)
    world.look()
    watch.alarms[0] = replace(HOT, answer="pause")
    (raised,) = world.look()
    assert isinstance(raised, AlarmRaised)
    assert raised.answer == "pause"


def test_what_ends_an_attempt_ends_the_next_one_too_while_it_stands(tmp_path: Path) -> None:
    world = World(tmp_path, Reports([LOST, HOT]))
    world.attempt(1)
    assert {event.name for event in world.look() if isinstance(event, AlarmRaised)} == {"gpu_lost", "throttled"}
    assert world.state.live is not None
    assert world.state.live.pending_kill is not None
    world.report(AttemptEnded(1, -6, "failed", "hardware", "it is lost", "", "", "", 0))
    world.attempt(2)
    (again,) = world.look()
    assert isinstance(again, AlarmRaised)
    assert (again.name, again.attempt) == ("gpu_lost", 2)
    assert world.state.gpu_failures == (("GPU-1", 1), ("GPU-1", 2))


@pytest.mark.parametrize("moment", ["begin", "look"])
def test_a_watch_that_fails_rests_and_reports_it(tmp_path: Path, moment: str) -> None:
    healthy = Reports([HOT], name="disk")
    world = World(tmp_path, Reports(fails_at=moment), healthy)
    names = {event.name for event in world.look() if isinstance(event, AlarmRaised)}
    assert names == {"watch_failed", "throttled"}
    assert world.look() == []
    assert "Error" in (RunDir(tmp_path).watches / "gpu.log").read_text(encoding="utf-8")


def test_what_was_reported_last_of_an_attempt_is_cleared_when_it_is_over(tmp_path: Path) -> None:
    watch = Reports()
    world = World(tmp_path, watch)
    world.attempt(1)
    assert world.look() == []
    watch.alarms.append(HOT)
    world.report(*world.watching.last_look(world.state, world.now_s))
    world.report(AttemptEnded(1, 1, "failed", "unknown", "", "", "", "", 0))
    assert [standing.alarm.name for standing in world.state.alarms] == ["throttled"]
    watch.alarms.clear()
    assert world.look() == [AlarmCleared(0, "gpu", "throttled", "GPU 0")]


def test_a_watch_that_does_not_end_keeps_no_other_from_ending(tmp_path: Path) -> None:
    first, second = Reports(fails_at="end"), Reports(name="disk")
    World(tmp_path, first, second).watching.end()
    assert first.is_over
    assert second.is_over
