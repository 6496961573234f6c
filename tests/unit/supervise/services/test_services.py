"""The events that services return for messages."""

from __future__ import annotations

import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmCleared, AlarmRaised, Event, Record, RunOpened
from prime_train.programs import bundled
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Launch, ReadyCheck
from prime_train.supervise.services import readiness as service
from prime_train.supervise.services.readiness import MemoryReleased
from prime_train.supervise.services.services import RunServices
from prime_train.supervise.watches.gpu.watch import GpuWatch
from prime_train.supervise.watches.watch import RunningWatches
from tests.fakes.supervisor import fake_run


def test_memory_that_is_given_back_later_clears_its_alarm(tmp_path: Path) -> None:
    services = RunServices(
        fake_run(tmp_path, 10), RunDir(tmp_path), bundled.PROGRAM, RunningWatches(), SimpleQueue(), ()
    )
    state, told = State(), list[Event]()
    for seq, message in enumerate((MemoryReleased(("GPU 0 holds 3 GiB",)), MemoryReleased(), MemoryReleased())):
        for event in services.handle_message(state, message):
            told.append(event)
            state = fold(state, Record(1.0, "supervisor", seq, event))
    assert [type(event) for event in told] == [AlarmRaised, AlarmCleared]
    assert state.alarms == ()


def test_what_happened_before_is_not_reported_again_and_a_clock_that_is_set_back_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = RunServices(
        fake_run(tmp_path, 10), RunDir(tmp_path), bundled.PROGRAM, RunningWatches(), SimpleQueue(), ()
    )
    sent: list[str] = []
    monkeypatch.setattr(services._alerts, "send", lambda about, _document, **_: sent.append(about))
    alarm = AlarmRaised(1, "gpu", "gpu_hot", "GPU 0", "alert", "hardware", "hot", "dust", "clean it", "", 3)
    state = fold(State(), Record(0.0, "supervisor", 0, RunOpened("r", 1, 10, "0")))
    services.handle_record(state, Record(1e12, "supervisor", 1, alarm))
    services.begin()
    services.handle_record(state, Record(1.0, "supervisor", 2, alarm))
    services.end()
    assert sent == ["gpu: gpu_hot: GPU 0"]


def test_a_supervisor_that_takes_over_learns_which_gpus_there_are_before_it_leaves_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GpuWatch(RunDir(tmp_path), answer="restart", visible=None)
    services = RunServices(
        fake_run(tmp_path, 10), RunDir(tmp_path), bundled.PROGRAM, RunningWatches(gpu=gpu), SimpleQueue(), ()
    )
    services.begin()
    try:
        monkeypatch.setattr(GpuWatch, "has_looked", False)
        assert services.may_launch(State())
        assert not services.may_launch(State(left_out=("GPU-1",)))
        monkeypatch.setattr(GpuWatch, "has_looked", True)
        assert services.may_launch(State(left_out=("GPU-1",)))
    finally:
        services.end()


def test_memory_without_an_owner_is_not_awaited_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that asks the driver may die; the next attempt then starts all the same."""
    monkeypatch.setattr(service, "await_memory", lambda *_: None)
    run = fake_run(tmp_path, 10)
    services = RunServices(run, RunDir(tmp_path), bundled.PROGRAM, RunningWatches(), SimpleQueue(), ())
    ready = ReadyCheck("http://127.0.0.1:9/health", "http://127.0.0.1:9/v1/completions", "tiny", 1.0)
    launch = Launch("inference", ("true",), tmp_path, tmp_path / "log", (), ready)
    services.await_ready(launch, 1, own_identity())
    services.end_attempt()
    assert not services.may_launch(State())
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + service.FREED_LIMIT_S + 60.0)
    assert services.may_launch(State())
    services.end()
