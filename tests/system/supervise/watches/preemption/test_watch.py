"""The watch asks servers that play the three clouds, through its real program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from prime_train.programs import program_of
from prime_train.spec import Data, Run, RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.watches.preemption.watch import PreemptionWatch, create, read_override
from prime_train.supervise.watches.watch import Alarm
from tests.fakes.metadata_server import MetadataServer

DEADLINE_S = 60.0


@pytest.fixture(params=["aws", "gcp", "azure"])
def server(request: pytest.FixtureRequest) -> Iterator[MetadataServer]:
    with MetadataServer(request.param).serving() as serving:
        yield serving


def begin(server: MetadataServer, folder: Path) -> PreemptionWatch:
    metadata = read_override(f"{server.cloud}={server.url}")
    assert metadata is not None
    watch = PreemptionWatch(RunDir(folder), metadata, interval_s=0.1)
    watch.begin()
    return watch


def await_alarms(watch: PreemptionWatch, *names: str) -> tuple[Alarm, ...]:
    give_up_s = time.monotonic() + DEADLINE_S
    while True:
        alarms = watch.look(State(), time.time())
        if tuple(alarm.name for alarm in alarms) == names:
            return alarms
        assert time.monotonic() < give_up_s, alarms
        time.sleep(0.02)


def await_questions(server: MetadataServer, count: int) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while len(server.asked) < count:
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


def test_a_notice_is_found_by_the_clock_of_the_cloud(server: MetadataServer, tmp_path: Path) -> None:
    server.clock_ahead_s = 3600.0
    watch = begin(server, tmp_path)
    try:
        await_questions(server, 2)
        assert watch.look(State(), time.time()) == ()
        server.announce(30.0)
        (alarm,) = await_alarms(watch, "preempted")
    finally:
        watch.end()
    assert alarm.answer == "leave"
    assert time.time() < alarm.deadline_s < time.time() + 32
    assert watch.processes() == ()


def test_events_of_other_machines_and_withdrawn_ones_are_none(tmp_path: Path) -> None:
    with MetadataServer("azure").serving() as server:
        server.announce(30.0, machine="trainer_4")
        watch = begin(server, tmp_path)
        try:
            await_questions(server, 3)
            assert watch.look(State(), time.time()) == ()
            server.announce(30.0)
            await_alarms(watch, "preempted")
            server.withdraw()
            await_alarms(watch)
        finally:
            watch.end()


def test_aws_gives_hints_and_renews_its_token(tmp_path: Path) -> None:
    with MetadataServer("aws").serving() as server:
        watch = begin(server, tmp_path)
        try:
            await_questions(server, 2)
            server.token = "AQAE-the-next-token"
            server.hint()
            await_alarms(watch, "preemption_near")
            server.announce(120.0)
            await_alarms(watch, "preempted")
        finally:
            watch.end()


def test_google_is_asked_once_and_then_answers_a_change(tmp_path: Path) -> None:
    with MetadataServer("gcp").serving() as server:
        watch = begin(server, tmp_path)
        try:
            await_questions(server, 2)
            assert server.asked == ["now", "wait"]
            server.announce(30.0)
            await_alarms(watch, "preempted")
        finally:
            watch.end()


def test_a_program_that_ended_is_noted(server: MetadataServer, tmp_path: Path) -> None:
    watch = begin(server, tmp_path)
    (child,) = watch.processes()
    watch.end()
    assert not child.alive
    await_alarms(watch, "preemption_not_watched")


def test_elsewhere_there_is_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, run = RunDir(tmp_path), RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=()))
    context = Context(run, run_dir, program_of(run))
    monkeypatch.setenv("PRIME_TRAIN_METADATA", "off")
    assert create(context) is None
    monkeypatch.setenv("PRIME_TRAIN_METADATA", "aws=http://127.0.0.1:9")
    assert create(context) is not None
