"""A controller is killed and comes back, and two controllers do not overwrite each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from prime_train.bus.base import KEPT, RevisionConflict, UnknownOutcome
from prime_train.bus.fleet_store import FleetStore
from prime_train.bus.spool import Spool
from tests.system.bus.stand import BEATS, EVENTS, KINDS, LocalStand, NatsStand, standing, standing_nats, until
from tests.system.bus.test_kills import kill_server, succeeds, write_events


@pytest.fixture(params=KINDS)
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStand | NatsStand]:
    with standing(request.param, tmp_path / "bus") as found:
        yield found


def send_next(stand: LocalStand | NatsStand, spool: Spool) -> None:
    batch = spool.next_batch()
    assert batch is not None
    stand.client("m1").publish(EVENTS, batch.body, batch.id)
    spool.acknowledge()


def test_a_controller_that_was_killed_knows_what_it_knew(stand: LocalStand | NatsStand, tmp_path: Path) -> None:
    write_events(tmp_path / "events", 300)
    spool = Spool(tmp_path / "events", tmp_path / "place.json")
    send_next(stand, spool)
    first = FleetStore(stand.client(), 0.0)
    until(lambda: "j.m1" in first.turn(0.2, 1.0))
    first.change("j.m1", {"checkpoint": 20, "plan": {"version": 1}})
    send_next(stand, spool)  # while there is no controller
    second = FleetStore(stand.client(), 2.0)
    assert second.documents["j.m1"]["decided"] == {"checkpoint": 20, "plan": {"version": 1}}
    until(lambda: "j.m1" in second.turn(0.2, 3.0))
    while spool.next_batch():
        send_next(stand, spool)
    until(lambda: second.turn(0.2, 4.0) == set())
    found = second.documents["j.m1"]
    assert {writer: max(lives.values()) for writer, lives in found["sent"].items()} == {
        "trainer-001-rank0": 299,
        "trainer-001-rank1": 299,
    }
    assert "gaps" not in found
    assert "damaged" not in found


def test_what_only_a_heartbeat_had_is_known_after_a_kill(stand: LocalStand | NatsStand) -> None:
    first, agent = FleetStore(stand.client(), 0.0), stand.client("m1")
    beats = ({"state": "train", "values": {"optim.lr": 1e-3}}, {"state": "died", "values": {"optim.lr": 2e-3}})
    for number, beat in enumerate(beats):
        agent.publish(BEATS, beat, f"b{number}")
        until(lambda: "j.m1" in first.turn(0.2, 1.0))
    found = FleetStore(stand.client(), 2.0).documents["j.m1"]
    assert (found["values"], found["beat"]["state"]) == ({"optim.lr": 2e-3}, "died")


def test_a_second_controller_is_noticed(stand: LocalStand | NatsStand) -> None:
    first = FleetStore(stand.client(), 0.0)
    first.change("j.m1", {"checkpoint": 1})
    second = FleetStore(stand.client(), 0.0)
    second.change("j.m1", {"checkpoint": 2})
    with pytest.raises(RevisionConflict):
        first.change("j.m1", {"checkpoint": 3})
    assert first.documents["j.m1"]["decided"] == {"checkpoint": 1}
    assert FleetStore(stand.client(), 0.0).documents["j.m1"]["decided"] == {"checkpoint": 2}


def test_a_machine_that_is_forgotten_is_gone(stand: LocalStand | NatsStand) -> None:
    first = FleetStore(stand.client(), 0.0)
    first.change("j.m1", {"checkpoint": 1})
    first.forget("j.m1")
    assert FleetStore(stand.client(), 0.0).documents == {}
    first.change("j.m1", {"checkpoint": 2})
    assert FleetStore(stand.client(), 0.0).documents["j.m1"]["decided"] == {"checkpoint": 2}


def test_a_store_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    write_events(tmp_path / "events", 1500)
    spool = Spool(tmp_path / "events", tmp_path / "place.json")
    with standing_nats(tmp_path / "bus") as stand:
        store, agent = FleetStore(stand.client(), 0.0), stand.client("m1")
        rounds = 0
        while (batch := spool.next_batch()) is not None:
            if not succeeds(lambda body=batch.body, name=batch.id: agent.publish(EVENTS, body, name)):  # type: ignore[misc]
                continue
            spool.acknowledge()
            rounds += 1
            if rounds % 5 == 0:
                kill_server(stand)
                stand.server.keep()
            with suppress(UnknownOutcome):
                store.turn(0.1, float(rounds))

        def is_whole() -> bool:
            with suppress(UnknownOutcome):
                store.turn(0.1, 100.0)
            sent = store.documents.get("j.m1", {}).get("sent", {})
            return bool(sum(max(lives.values()) for lives in sent.values()) == 2 * 1499)

        until(is_whole)
        assert "gaps" not in store.documents["j.m1"]
        assert stand.client().subscribe(KEPT, "reader").take(0) == []
        assert FleetStore(stand.client(), 0.0).documents["j.m1"]["sent"] == store.documents["j.m1"]["sent"]
