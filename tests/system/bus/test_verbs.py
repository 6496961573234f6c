"""Both back ends keep the same promises."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from prime_train.bus.base import KEPT, OBJECT_BYTES, BusRefused, RevisionConflict, UnknownOutcome
from tests.system.bus.stand import BEATS, COMMANDS, EVENTS, KINDS, LocalStand, NatsStand, standing, take


@pytest.fixture(scope="module", params=KINDS)
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStand | NatsStand]:
    with standing(request.param, tmp_path_factory.mktemp("bus")) as found:
        yield found


Any_ = LocalStand | NatsStand


def test_messages_arrive_in_order_where_the_pattern_matches(stand: Any_) -> None:
    controller, agent = stand.client(), stand.client("m1")
    beats = controller.subscribe("pt.*.r.*.hb")
    commands = controller.subscribe("pt.j.cmd.>")
    for number in range(50):
        agent.publish(BEATS, {"step": number}, f"b{number}")
    assert [message.body["step"] for message in take(beats, 50)] == list(range(50))
    assert commands.take(0) == []


def test_a_kept_message_waits_for_its_reader_and_is_there_once_for_each_id(stand: Any_) -> None:
    agent = stand.client("m1")
    for number in (0, 1, 1, 2, 0):
        agent.publish(EVENTS, {"n": number}, f"kept{number}")
    first = stand.client().subscribe(KEPT, "reader")
    assert [message.body["n"] for message in take(first, 3)] == [0, 1, 2]
    again = stand.client().subscribe(KEPT, "reader")  # the first reader was killed before it acknowledged
    assert [message.id for message in take(again, 3)] == ["kept0", "kept1", "kept2"]
    again.acknowledge()
    agent.publish(EVENTS, {"n": 3}, "kept3")
    assert [message.id for message in take(stand.client().subscribe(KEPT, "reader"), 1)] == ["kept3"]
    again.take(1.0)
    again.acknowledge()
    assert stand.client().subscribe(KEPT, "reader").take(0) == []


def test_a_request_is_answered_with_its_id(stand: Any_) -> None:
    controller, agent = stand.client(), stand.client("m1")
    commands = agent.subscribe(COMMANDS)

    def answer() -> None:
        [message] = take(commands, 1)
        agent.publish(message.reply, {"done": message.body["kind"]}, message.id)

    thread = threading.Thread(target=answer)
    thread.start()
    found = controller.request(COMMANDS, {"kind": "stop"}, "c1", 30.0)
    thread.join()
    assert (found.id, found.body) == ("c1", {"done": "stop"})


def test_without_an_answer_the_outcome_is_not_known(stand: Any_) -> None:
    with pytest.raises(UnknownOutcome):
        stand.client().request("pt.j.cmd.nobody", {}, "c2", 0.2)


def test_keys_are_compared_and_set(stand: Any_) -> None:
    values = stand.client().kv("keys")
    assert values.get("a.b") is None
    first = values.update("a.b", {"v": 1}, 0)
    with pytest.raises(RevisionConflict):
        values.update("a.b", {"v": 2}, 0)
    second = values.update("a.b", {"v": 3}, first)
    with pytest.raises(RevisionConflict):
        values.update("a.b", {"v": 4}, first)
    found = values.get("a.b")
    assert found is not None
    assert (found.value, found.revision) == ({"v": 3}, second)
    values.delete("a.b")
    assert values.get("a.b") is None
    with pytest.raises(RevisionConflict):
        values.update("a.b", {"v": 5}, second)
    assert values.update("a.b", {"v": 6}, 0) > second
    assert [(entry.key, entry.value) for entry in values.list_entries()] == [("a.b", {"v": 6})]


def test_a_watch_sees_each_key_and_its_end(stand: Any_) -> None:
    values = stand.client().kv("watched")
    values.put("one", {"v": 1})
    watch = stand.client().kv("watched").watch()
    assert [(entry.key, entry.value) for entry in watch.take(10.0)] == [("one", {"v": 1})]
    values.put("two", {"v": 2})
    assert [entry.key for entry in watch.take(10.0)] == ["two"]
    values.delete("one")
    assert [(entry.key, entry.value) for entry in watch.take(10.0)] == [("one", None)]
    assert watch.take(0) == []


def test_a_large_object_is_whole_and_is_replaced_and_deleted(stand: Any_) -> None:
    objects, content = stand.client().objects("stacks"), os.urandom(OBJECT_BYTES)
    assert objects.get("j.m1.1") is None
    for written in (b"", b"first", content):
        objects.put("j.m1.1", written)
        assert stand.client().objects("stacks").get("j.m1.1") == written
    objects.put("j.m1.2", b"other")
    assert objects.list_names() == ["j.m1.1", "j.m1.2"]
    for _ in range(2):
        objects.delete("j.m1.1")
        assert objects.get("j.m1.1") is None
    assert stand.client().objects("stacks").list_names() == ["j.m1.2"]
    for name in ("", "../j", "j m"):
        with pytest.raises(ValueError, match="no subject"):
            objects.put(name, b"")
    with pytest.raises(ValueError, match="at most"):
        objects.put("j.m1.3", content + b"x")


def test_a_bucket_that_is_full_refuses_and_keeps_what_it_has(stand: Any_) -> None:
    objects = stand.client().objects("small", 2**20)
    objects.put("one", b"x" * 700_000)
    for name in ("two", "two"):
        with pytest.raises(BusRefused):
            objects.put(name, b"y" * 700_000)
    assert objects.get("two") is None
    assert objects.get("one") == b"x" * 700_000
    objects.delete("one")
    objects.put("two", b"y" * 700_000)
    assert objects.list_names() == ["two"]


@pytest.mark.parametrize(
    "subject", ["", "pt..hb", "pt.*.hb", "pt.>", "pt.a b", "../../etc", "pt.j.\n", "a." * 20 + "a"]
)
def test_a_subject_is_plain_words(stand: Any_, subject: str) -> None:
    with pytest.raises(ValueError, match="no subject"):
        stand.client().publish(subject, {}, "i")
    with pytest.raises(ValueError, match="no subject"):
        stand.client().kv("keys").put(subject, {})


@pytest.mark.parametrize(
    ("body", "message_id"),
    [
        ({"x": "y" * 5 * 2**20}, "i"),
        ({"x": float("nan")}, "i"),
        ({"x": 2**70}, "i"),
        ({"x": "\ud800"}, "i"),
        ({}, ""),
        ({}, "a b"),
        ({}, "a\r\nNats-Msg-Id: b"),
        ({}, "i" * 300),
    ],
)
def test_what_no_reader_takes_is_not_sent(stand: Any_, body: dict[str, object], message_id: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        stand.client("m1").publish(BEATS, body, message_id)


def test_a_deep_body_is_not_sent(stand: Any_) -> None:
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"x": deep}
    with pytest.raises(ValueError, match="nests"):
        stand.client("m1").publish(BEATS, deep, "i")


def test_a_slow_subscriber_loses_messages_that_pass_by_and_knows_how_many(
    stand: Any_,
) -> None:
    sender = stand.client("m1")
    slow, quick = stand.client().subscribe(BEATS), stand.client().subscribe(BEATS)
    text = "x" * 2**20
    for number in range(80):  # the limit is 64 MiB
        sender.publish(BEATS, {"n": number, "text": text}, f"slow{number}")
        assert [message.body["n"] for message in take(quick, 1)] == [number]
    found: list[object] = []
    while 79 not in found:
        found += [message.body["n"] for message in take(slow, 1)]
    assert found == list(range(80 - len(found), 80)), "the newest stay, in order"
    assert 0 < slow.lost == 80 - len(found)
