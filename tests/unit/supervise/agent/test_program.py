from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prime_train.bus.base import BusError, BusRefused, UnknownOutcome
from prime_train.bus.local import LocalBus
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, RunOpened
from prime_train.supervise.agent.program import Agent, _serve_again


class BusThatStoresNothing(LocalBus):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reasons: list[BusError] = []

    def publish(self, subject: str, *_: Any) -> None:
        assert subject == "pt.demo.r.m1.ev"
        raise self.reasons.pop(0)


@pytest.mark.parametrize("kind", [UnknownOutcome, BusRefused])
def test_each_reason_why_events_are_not_stored_is_logged_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: type[BusError]
) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.bus.mkdir(parents=True)
    EventLog(run_dir.events, "supervisor").append(RunOpened("demo", 1, 100, "0.1"))
    bus = BusThatStoresNothing(tmp_path / "bus")
    agent = Agent(run_dir, bus, "demo", "m1")
    bus.reasons = [kind("there is no listener on it"), kind("no answer in time")] * 3
    bus.reasons += [kind(f"reason {number}") for number in range(100)]
    while bus.reasons:
        agent._send()
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(": ")[-1] for line in lines[:3]] == [
        "there is no listener on it",
        "no answer in time",
        "reason 0",
    ]
    assert len(lines) == 32


def test_an_agent_that_fails_is_started_again_and_ends_with_a_reason(capfd: pytest.CaptureFixture[str]) -> None:
    left = [RuntimeError("first"), RuntimeError("second"), None, *[RuntimeError("always")] * 9]

    def serve() -> int:
        error = left.pop(0)
        if error is not None:
            raise error
        return 0

    assert _serve_again(serve, 0.0) == 0
    assert capfd.readouterr().err.count("RuntimeError: ") == 2
    assert _serve_again(serve, 0.0) == 1
    assert len(left) == 5
    assert "the agent ends after 3 restarts" in capfd.readouterr().err.splitlines()[-1]
