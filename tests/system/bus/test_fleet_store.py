"""A controller is killed and comes back, and two controllers do not overwrite each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from prime_train.bus.base import KEPT, RevisionConflict, UnknownOutcome
from prime_train.bus.fleet import EMPTY
from prime_train.bus.fleet_evidence import OBJECTS, read_kept
from prime_train.bus.fleet_store import BUCKET, DRAINED, FleetStore
from prime_train.bus.spool import Spool
from prime_train.control.fleet_rows import map_remote_devices
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, GpuLeftOut, GpuReturned, GpuTested, LaunchAsked, RunOpened
from prime_train.supervise.agent.program import Agent
from prime_train.supervise.watches.gpu.health import write_gpu_health
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


def send_evidence(stand: LocalStand | NatsStand, attempt: object, text: str = "the disk is on fire") -> None:
    body = {"attempt": attempt, "files": [{"name": "trainer.log", "text": text}, {"name": 5}, 6]}
    stand.client("m1").publish(EVENTS, body, f"evidence:{attempt}")


def test_evidence_is_an_object_that_outlives_the_controller(stand: LocalStand | NatsStand) -> None:
    store = FleetStore(stand.client(), 0.0)
    for attempt in (1, 2, -1, "x", True):
        send_evidence(stand, attempt)
    until(lambda: len(taken := store.turn(0.2, 1.0)) == 0 and not taken and "j.m1" in store.documents)
    store.close()
    again = FleetStore(stand.client(), 2.0)
    assert again.documents["j.m1"]["kept"] == {"1": 1.0, "2": 1.0}
    assert again.documents["j.m1"]["damaged"] == 3
    assert read_kept(stand.client(), "j.m1", 1) == [{"name": "trainer.log", "text": "the disk is on fire"}]
    assert read_kept(stand.client(), "j.m1", 3) == []
    again.forget("j.m1")
    assert read_kept(stand.client(), "j.m1", 1) == []


def test_old_evidence_makes_room_and_that_of_another_machine_stays(
    stand: LocalStand | NatsStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = stand.client()
    small = bus.objects(OBJECTS, 2**20)
    small.list_names()  # makes the bucket
    monkeypatch.setattr(bus, "objects", lambda _bucket: small)
    store = FleetStore(bus, 0.0)
    other = {"attempt": 1, "files": [{"name": "trainer.log", "text": "x" * 200_000}]}
    stand.client("m2").publish("pt.j.r.m2.ev", other, "other")
    for attempt in range(1, 9):
        send_evidence(stand, attempt, "y" * 300_000)
        until(lambda n=attempt: str(n) in store.documents.get("j.m1", {}).get("kept", {}) or not store.turn(0.2, n))  # type: ignore[misc]
    until(lambda: store.turn(0.2, 9.0) == set())
    assert store.documents["j.m2"]["kept"].keys() == {"1"}
    assert store.documents["j.m1"]["kept"].keys() == {"7", "8"}
    assert small.list_names() == ["j.m1.7", "j.m1.8", "j.m2.1"]
    send_evidence(stand, 9, "z" * 1_500_000)
    until(lambda: any("attempt 9, is not kept" in text for text in [*store.take_problems(), *turned(store)]))


def turned(store: FleetStore) -> list[str]:
    store.turn(0.2, 10.0)
    return store.take_problems()


def test_a_machine_that_was_drained_comes_back_with_what_it_sent_meanwhile(
    stand: LocalStand | NatsStand, tmp_path: Path
) -> None:
    write_events(tmp_path / "events", 300)
    spool = Spool(tmp_path / "events", tmp_path / "place.json")
    store = FleetStore(stand.client(), 0.0)
    send_next(stand, spool)
    until(lambda: "j.m1" in store.turn(0.2, 1.0))
    store.drain("j.m1")
    store.drain("j.m1")
    assert store.documents == {}
    again = FleetStore(stand.client(), 2.0)
    assert (list(again.documents), list(again.drained)) == ([], ["j.m1"])
    while spool.next_batch():
        send_next(stand, spool)
    stand.client("m1").publish(BEATS, {"state": "train"}, "beat")
    until(lambda: again.turn(0.2, 3.0) == set())
    assert [entry.key for entry in stand.client().kv(BUCKET).list_entries()] == []
    again.bring_back("j.m1")
    third = FleetStore(stand.client(), 4.0)
    assert third.drained == {}
    assert {max(lives.values()) for lives in third.documents["j.m1"]["sent"].values()} == {299}
    assert "gaps" not in third.documents["j.m1"]


def test_a_drain_that_was_interrupted_is_done(stand: LocalStand | NatsStand) -> None:
    store = FleetStore(stand.client(), 0.0)
    store.change("j.m1", {"checkpoint": 1})
    stand.client().kv(DRAINED).put("j.m1", store.documents["j.m1"])  # and then it was killed
    again = FleetStore(stand.client(), 0.0)
    assert (list(again.documents), list(again.drained)) == ([], ["j.m1"])
    assert stand.client().kv(BUCKET).list_entries() == []
    again.bring_back("j.m1")
    assert again.documents["j.m1"]["decided"] == {"checkpoint": 1}


def test_a_machine_that_invents_runs_pushes_out_its_own_ones_alone(
    stand: LocalStand | NatsStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_train.bus.fleet_store.MOST_JOBS", 5)
    store = FleetStore(stand.client(), 0.0)
    stand.client("m2").publish("pt.j.r.m2.ev", {"events": []}, "first")
    until(lambda: "j.m2" in store.turn(0.2, 1.0))
    for number in range(20):
        stand.client("m1").publish(f"pt.job{number}.r.m1.ev", {"events": []}, f"e{number}")
        until(lambda n=number: f"job{n}.m1" in store.turn(0.2, 2.0 + n))  # type: ignore[misc]
    expected = {"j.m2", *(f"job{number}.m1" for number in range(15, 20))}
    assert store.documents.keys() == expected
    assert {entry.key for entry in stand.client().kv(BUCKET).list_entries()} == expected
    assert len(store.take_problems()) == 15


GPUS: list[dict[str, object]] = [
    {"index": number, "uuid": f"GPU-{number}", "fault": "", "uses": [], "utilisation_percent": 90} for number in (0, 1)
]


def test_a_drained_gpu_leaves_the_map_and_the_keys_until_returned(
    stand: LocalStand | NatsStand, tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.watches.mkdir(parents=True)
    log = EventLog(run_dir.events, "supervisor")
    log.append(RunOpened("j", 1, 100, "0.1"))
    write_gpu_health(run_dir.path, {"gpus": GPUS})
    agent, store = Agent(run_dir, stand.client("m1"), "j", "m1"), FleetStore(stand.client(), 0.0)

    def shown() -> tuple[list[str], list[str]]:
        """On the map and in the key, after everything was sent and taken."""
        agent._changed = True
        agent._look()
        until(agent._turn)
        until(lambda: store.turn(0.2, 1.0) == set())
        document = {**EMPTY, **store.documents["j.m1"]}
        devices = map_remote_devices(document, "live").get("m1", {"devices": {}})["devices"]
        [entry] = stand.client().kv(BUCKET).list_entries()
        assert entry.value is not None
        return list(devices), [gpu["uuid"] for gpu in entry.value.get("gpus", [])]

    shown()
    log.append(LaunchAsked(1, 0))  # a heartbeat reaches the keys with the next event, or after a while
    assert shown() == (["GPU-0", "GPU-1"], ["GPU-0", "GPU-1"])
    log.append(GpuLeftOut("GPU-1", "drained by ada"))
    assert shown() == (["GPU-0"], ["GPU-0"])
    log.append(GpuTested("c1", "GPU-1", True, "right", 1.0))
    assert shown() == (["GPU-0"], ["GPU-0"])
    assert store.documents["j.m1"]["left_out"] == [{"uuid": "GPU-1", "test": {"passed": True, "what": "right"}}]
    log.append(GpuReturned("GPU-1", "by ada"))
    shown()
    log.append(LaunchAsked(2, 0))
    assert shown() == (["GPU-0", "GPU-1"], ["GPU-0", "GPU-1"])


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
