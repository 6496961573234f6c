"""Traces are objects that outlive their machine and their controller, for both kinds of bus."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.bus.base import Bus, BusMessage
from prime_train.bus.fleet import EMPTY
from prime_train.bus.fleet_events import Document
from prime_train.bus.fleet_store import FleetStore
from prime_train.bus.fleet_traces import (
    OBJECTS,
    PART_BYTES,
    TRACE_BYTES,
    TRACES_KEPT,
    TracePart,
    TraceStore,
    count_parts,
    is_whole,
    read_trace,
)
from prime_train.bus.local import LocalBus
from prime_train.control.fleet_rows import make_remote_detail
from tests.system.bus.stand import EVENTS, KINDS, LocalStand, NatsStand, standing, until

KEY = "j.m1"
NAME = "step_5.trace.json.gz"


@pytest.fixture(params=KINDS)
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStand | NatsStand]:
    with standing(request.param, tmp_path / "bus") as found:
        yield found


def cut(content: bytes, name: str = NAME) -> list[TracePart]:
    whole = TracePart(name, len(content), 7.0, sha256(content).hexdigest())
    numbers = range(count_parts(len(content)))
    return [replace(whole, number=n, content=content[n * PART_BYTES : (n + 1) * PART_BYTES]) for n in numbers]


def send(stand: LocalStand | NatsStand, parts: list[TracePart], machine: str = "m1") -> None:
    agent = stand.client(machine)
    for part in parts:
        agent.publish(EVENTS.replace("m1", machine), part.to_body(), f"t{os.urandom(8).hex()}")


def follow(store: FleetStore) -> None:
    until(lambda: store.turn(0.2, 1.0) != set())
    until(lambda: store.turn(0.2, 1.0) == set())


def read(bus: Bus, document: Document, name: str = NAME) -> bytes:
    return read_trace(bus, KEY, name, document["traces"][name])


def shown(document: Document) -> list[dict[str, Any]]:
    complete = {**EMPTY, **document, "job": "j", "machine": "m1"}
    found: list[dict[str, Any]] = make_remote_detail(complete, "lost", 1.0)["traces"]
    return found


def test_a_trace_outlives_a_controller_that_is_killed_between_its_parts(stand: LocalStand | NatsStand) -> None:
    content = os.urandom(2 * PART_BYTES + 5)
    parts = cut(content)
    first = FleetStore(stand.client(), 0.0)
    send(stand, parts[:1])
    follow(first)
    assert shown(first.documents[KEY])[0]["note"] == "1 of 3 parts have come"
    first.close()
    send(stand, parts[1:])  # while there is no controller
    second = FleetStore(stand.client(), 2.0)
    follow(second)
    assert shown(second.documents[KEY]) == [
        {"name": NAME, "size_bytes": len(content), "saved_s": 7.0, "note": "", "ready": True}
    ]
    assert read(stand.client(), second.documents[KEY]) == content
    names = stand.client().objects(OBJECTS).list_names()
    assert len(names) == 3
    second.forget(KEY)
    assert stand.client().objects(OBJECTS).list_names() == []


def test_a_trace_that_is_replaced_a_note_and_one_too_many_leave_no_object(stand: LocalStand | NatsStand) -> None:
    store = FleetStore(stand.client(), 0.0)
    send(stand, cut(b"old"))
    send(stand, cut(b"new" * PART_BYTES))
    follow(store)
    assert read(stand.client(), store.documents[KEY]) == b"new" * PART_BYTES
    assert len(stand.client().objects(OBJECTS).list_names()) == 3
    send(stand, [TracePart(NAME, 2**40, 8.0, note="it has 1.0 TiB")])
    follow(store)
    assert shown(store.documents[KEY])[0]["note"] == "it has 1.0 TiB"
    assert not shown(store.documents[KEY])[0]["ready"]
    assert stand.client().objects(OBJECTS).list_names() == []
    for number in range(TRACES_KEPT + 3):
        send(stand, cut(b"%d" % number, f"step_{number}.trace.json.gz"))
    follow(store)
    assert len(store.documents[KEY]["traces"]) == TRACES_KEPT
    assert len(stand.client().objects(OBJECTS).list_names()) == TRACES_KEPT


def test_the_machine_with_the_most_loses_its_oldest_where_there_is_no_room(
    stand: LocalStand | NatsStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = stand.client()
    small = bus.objects(OBJECTS, 7 * 2**20)
    small.list_names()  # makes the bucket
    monkeypatch.setattr(bus, "objects", lambda _bucket: small)
    store = FleetStore(bus, 0.0)
    send(stand, cut(os.urandom(2**20)), "m2")
    follow(store)
    for number in range(1, 5):
        send(stand, cut(os.urandom(PART_BYTES), f"step_{number}.trace.json.gz"))
        follow(store)
    assert len(store.documents["j.m2"]["traces"]) == 1
    kept = store.documents[KEY]["traces"]
    assert 0 < len(kept) < 4
    assert all(is_whole(one) for one in kept.values())
    assert "step_4.trace.json.gz" in kept
    send(stand, cut(os.urandom(8 * 2**20), "step_5.trace.json.gz"))
    follow(store)
    assert "the controller has no room" in store.documents[KEY]["traces"]["step_5.trace.json.gz"]["note"]
    assert any("step_5.trace.json.gz of j.m1 is not kept" in text for text in store.take_problems())
    assert len(store.documents["j.m2"]["traces"]) == 1, "a large trace does not take the room of another machine"


HOSTILE: tuple[dict[str, Any], ...] = (
    {"trace": 1, "content": ""},
    {"trace": {}, "content": ""},
    {"trace": cut(b"x")[0].to_body()["trace"], "content": 5},
    {"trace": cut(b"x")[0].to_body()["trace"], "content": "not base64!"},
    {"trace": cut(b"x")[0].to_body()["trace"], "content": "eHg="},
    *(
        {"trace": cut(b"x")[0].to_body()["trace"] | changed, "content": "eA=="}
        for changed in (
            {"name": "../../etc/passwd"},
            {"name": 'a".trace.json.gz'},
            {"name": "x" * 999 + ".trace.json.gz"},
            {"size_bytes": TRACE_BYTES + 1},
            {"size_bytes": 0},
            {"size_bytes": True},
            {"number": -1},
            {"number": 1},
            {"number": 2**80},
            {"digest": "../x"},
            {"digest": 1},
            {"saved_s": -1},
            {"saved_s": "now"},
            {"note": 5},
        )
    ),
)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_what_is_no_part_of_a_trace_is_counted_and_left_out(tmp_path: Path, number: int) -> None:
    bus = LocalBus(tmp_path / "bus")
    documents: dict[str, Document] = {KEY: {**EMPTY}}
    assert TraceStore(bus).keep(documents, KEY, BusMessage(EVENTS, "x", HOSTILE[number]), 1.0) == ""
    assert (documents[KEY]["damaged"], documents[KEY]["traces"]) == (1, {})
    assert bus.objects(OBJECTS).list_names() == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=3), st.lists(st.integers(0, 3), max_size=6))
def test_parts_that_come_twice_and_in_any_order_before_make_the_same_trace(ends: list[int], strays: list[int]) -> None:
    """An agent that was killed begins again with the first part; a stray part of the same trace changes nothing."""
    content = os.urandom(3 * PART_BYTES + 1)
    parts = cut(content)
    sent = [part for end in ends for part in parts[:end]]
    sent += [parts[number] for number in strays if sent]
    with tempfile.TemporaryDirectory() as folder:
        bus = LocalBus(Path(folder) / "bus")
        store, documents = TraceStore(bus), dict[str, Document]({KEY: {**EMPTY}})
        for part in [*sent, *parts]:
            assert store.keep(documents, KEY, BusMessage(EVENTS, "x", part.to_body()), 1.0) == ""
        assert read(bus, documents[KEY]) == content
        assert len(bus.objects(OBJECTS).list_names()) == len(parts)


def test_a_part_after_one_that_never_came_makes_no_whole_trace(tmp_path: Path) -> None:
    bus, parts = LocalBus(tmp_path / "bus"), cut(os.urandom(2 * PART_BYTES + 1))
    store, documents = TraceStore(bus), dict[str, Document]({KEY: {**EMPTY}})
    for part in (parts[0], parts[2], parts[0], parts[2]):
        store.keep(documents, KEY, BusMessage(EVENTS, "x", part.to_body()), 1.0)
    assert not is_whole(documents[KEY]["traces"][NAME])
    assert len(bus.objects(OBJECTS).list_names()) == 1
    store.keep(documents, KEY, BusMessage(EVENTS, "x", parts[1].to_body()), 1.0)
    assert not is_whole(documents[KEY]["traces"][NAME])
