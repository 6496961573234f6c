from __future__ import annotations

from functools import reduce

from prime_train.events import AttemptEnded, Event, LaunchAsked, Phase, Progress, Record, RunClosed, RunOpened
from prime_train.supervise.agent.pulse import Pulse


def pulse_after(*events: Event) -> Pulse:
    records = [Record(float(number), "supervisor", number, event) for number, event in enumerate(events)]
    return reduce(Pulse.after, records, Pulse())


OPENED = RunOpened("demo", 1, 100, "0.1")
FAILED = AttemptEnded(1, -9, "failed", "signal", "", "", "", "", 0)


def test_a_pulse_follows_the_run() -> None:
    assert pulse_after(OPENED, LaunchAsked(1, 0)) == Pulse("starting", 1)
    training = (OPENED, LaunchAsked(1, 0), Phase(1, "data"), Progress(1, 7, 1.0, 1.0, 1))
    assert pulse_after(*training) == Pulse("train", 1, 7, 3.0)
    assert pulse_after(*training, Phase(1, "evaluate")).state == "evaluate"
    assert pulse_after(*training, FAILED) == Pulse("restarting", 1, 7, 3.0)
    assert pulse_after(*training, RunClosed("finished", 0, "")) == Pulse("finished", 1, 7, 3.0, 0)


def test_a_resumed_run_is_not_closed() -> None:
    assert pulse_after(OPENED, RunClosed("stopped", 75, ""), OPENED) == Pulse("starting")
