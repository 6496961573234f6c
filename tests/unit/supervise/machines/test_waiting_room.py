"""What a paused run makes of the other machines: who waits, who is missing, whose GPUs are tested."""

import json
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.bus.local import LocalBus
from prime_train.core.machines import Machines
from prime_train.core.process_id import own_identity
from prime_train.supervise.machines import waiting_program
from prime_train.supervise.machines.post import Post
from prime_train.supervise.machines.protocol import KINDS, Lost
from prime_train.supervise.machines.waiting_program import WaitingRoom
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines.played import PlayedMachine

MACHINES = Machines(0, ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
SECOND, THIRD = (MACHINES.name(rank) for rank in (1, 2))


class Pause:
    """A pause on a bus in a folder, with machines that a test plays. Machine 2 is drained, and tested."""

    def __init__(self, folder: Path) -> None:
        self.bus = LocalBus(folder / "bus")
        self.room = WaitingRoom(MACHINES, Post(MACHINES, self.bus, "config"), drained=[2], tests=[2])
        self.room.has_secret = True

    def machine(self, rank: int) -> PlayedMachine:
        return PlayedMachine(self.bus, rank, self.room.turn)

    def join(self, rank: int, config: str = "config") -> PlayedMachine:
        return self.machine(rank).join(config)


@pytest.fixture
def pause(tmp_path: Path) -> Pause:
    return Pause(tmp_path)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The lines that the child prints."""
    found: list[object] = []
    monkeypatch.setattr(waiting_program, "write", lambda line: found.append(json.loads(json.dumps(line))))
    return found


def test_a_machine_that_joins_waits_and_only_one_that_the_run_needs_is_missing(pause: Pause) -> None:
    assert pause.room.list_missing() == {SECOND: "it has not come"}
    message = pause.join(1).take_one()
    assert message == {"kind": "paused", "why": "the run is paused, and this machine waits until it goes on"}
    assert pause.room.list_missing() == {}


def test_a_machine_that_leaves_is_missing_with_the_reason(pause: Pause) -> None:
    waiting = pause.join(1)
    waiting.take_one()
    waiting.channel.close()
    pause.room.turn()
    assert pause.room.list_missing() == {SECOND: "it closed the connection"}


def test_a_machine_that_is_started_again_takes_its_place(pause: Pause) -> None:
    before = pause.join(1)
    before.take_one()
    assert pause.join(1).take_one()["kind"] == "paused"
    with pytest.raises(Lost):
        before.take_one()
    assert pause.room.list_missing() == {}


def test_without_a_secret_a_machine_that_waits_is_not_replaced(pause: Pause) -> None:
    pause.room.has_secret = False
    there = pause.join(1)
    there.take_one()
    with pytest.raises(Lost):
        pause.join(1).take_one()
    pause.room.turn()
    assert pause.room.joined[1].peer == there.channel.own


def test_another_config_is_refused_and_named(pause: Pause) -> None:
    assert pause.join(1, "another").take_one()["kind"] == "refused"
    assert pause.room.list_missing() == {SECOND: "its config is not that of machine 0"}


def test_a_stop_on_a_drained_machine_ends_that_machine_alone(pause: Pause) -> None:
    drained = pause.join(2)
    assert "prime-train gpu return RUN machine-2" in drained.take_one()["why"]
    assert drained.take_one() == {"kind": "test"}
    drained.send(kind="stop", by="SIGTERM")
    assert drained.take_one() == {"kind": "closed", "code": 75}


def test_a_stop_on_a_machine_that_waits_stops_the_run(pause: Pause, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: stopped.append(number))
    monkeypatch.setenv("PRIME_TRAIN_SUPERVISOR", str(own_identity()))
    try:
        pause.join(1).send(kind="stop", by="SIGTERM")
        wait_until(lambda: stopped == [signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_result_of_a_test_is_reported_once(pause: Pause, written: list[object]) -> None:
    drained = pause.join(2)
    for _ in range(2):
        drained.take_one()
    drained.send(kind="tested", passed=True, what="cpu passed", seconds=1.5)
    pause.room.fail_tests()
    assert written == [{"machine": 2, "passed": True, "what": "cpu passed", "seconds": 1.5}]


def test_a_test_of_a_machine_that_is_not_there_fails(pause: Pause, written: list[object]) -> None:
    for _ in range(2):
        pause.room.fail_tests()
    what = f"{THIRD} is not there: it has not come"
    assert written == [{"machine": 2, "passed": False, "what": what, "seconds": 0.0}]


_kinds = st.sampled_from(sorted(set(KINDS) - {"stop"}))
_texts = st.text(max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_kinds, _texts), max_size=4))
def test_what_no_waiting_machine_sends_ends_only_its_own_wait(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[str, str]]
) -> None:
    pause = Pause(tmp_path_factory.mktemp("bus"))
    other = pause.join(1)
    for kind, text in sent:
        body = {"kind": kind, "code": 0, "text": text, "why": text, "line": text, "version": 1, "what": text}
        other.send(**body, config="", passed=True, seconds=0.0, attempt=1, resume_step=0, micro_batch=1)
    pause.room.turn()
    assert set(pause.room.list_missing()) == ({SECOND} if sent else set())
    assert pause.room.tests == {2}
