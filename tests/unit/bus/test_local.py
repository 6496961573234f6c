from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.bus import message_log
from prime_train.bus.base import KEPT, BusRefused, RevisionConflict
from prime_train.bus.local import LocalBus

EVENTS = "pt.j.r.m1.ev"


def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    LocalBus(tmp_path / "bus").publish(EVENTS, {}, "e1")
    for path in (tmp_path / "bus", *(tmp_path / "bus").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(BusRefused, match="chmod 700"):
        LocalBus(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a link to another user")
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    own, link = tmp_path / "own", tmp_path / "bus"
    own.mkdir(mode=0o700)
    link.symlink_to(own)
    LocalBus(link)
    os.lchown(link, 65534, 65534)
    with pytest.raises(BusRefused, match="chmod 700"):
        LocalBus(link)


def fits(bus: LocalBus, number: int) -> bool:
    try:
        bus.publish(EVENTS, {"text": "x" * 1000}, f"e{number}")
    except BusRefused:
        return False
    return True


def test_a_full_store_refuses_until_its_reader_acknowledges(tmp_path: Path) -> None:
    bus = LocalBus(tmp_path, kept_bytes=40_000)
    queue = bus.subscribe(KEPT, "reader")
    sent = 0
    while fits(bus, sent):
        sent += 1
    assert [message.id for message in queue.take(0)] == [f"e{number}" for number in range(sent)]
    with pytest.raises(BusRefused, match="the store is full"):
        bus.publish(EVENTS, {"text": "x" * 1000}, f"e{sent}")
    queue.acknowledge()
    bus.publish(EVENTS, {"text": "x" * 1000}, f"e{sent}")
    assert [message.id for message in queue.take(0)] == [f"e{sent}"]
    assert queue.lost == 0


def test_messages_that_pass_by_take_bounded_space(tmp_path: Path) -> None:
    bus = LocalBus(tmp_path, passing_bytes=40_000)
    for number in range(500):
        bus.publish("pt.j.r.m1.hb", {"text": "x" * 1000}, f"h{number}")
    assert sum(path.stat().st_size for path in (tmp_path / "passing").glob("*.jsonl")) <= 40_000


def test_a_disk_that_takes_no_more_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = LocalBus(tmp_path)
    queue = bus.subscribe(KEPT, "reader")
    bus.publish(EVENTS, {"n": 1}, "e1")

    def write_half(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(message_log, "write_all", write_half)
        with pytest.raises(BusRefused, match="No space left"):
            bus.publish(EVENTS, {"n": 2}, "e2")
    bus.publish(EVENTS, {"n": 2}, "e2")
    assert [message.id for message in queue.take(0)] == ["e1", "e2"]
    assert queue.rejected == 0


steps = st.lists(
    st.tuples(st.sampled_from(["put", "update", "stale", "create", "delete"]), st.sampled_from("abc")), max_size=20
)


@given(steps)
def test_keys_behave_as_a_dictionary_with_revisions(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    values = LocalBus(tmp_path_factory.mktemp("bus")).kv("keys")
    watch = values.watch()
    model: dict[str, tuple[int, int]] = {}
    seen: dict[str, object] = {}
    highest = 0
    for number, (verb, key) in enumerate(steps):
        value, revision = {"n": number}, model.get(key, (0, 0))[1]
        if verb == "delete":
            values.delete(key)
            model.pop(key, None)
            continue
        expected = {"update": revision, "stale": revision + 1000, "create": 0}.get(verb)
        if expected is None:
            written = values.put(key, value)
        elif expected != revision:
            with pytest.raises(RevisionConflict):
                values.update(key, value, expected)
            continue
        else:
            written = values.update(key, value, expected)
        assert written > highest, "a revision is never given again"
        highest, model[key] = written, (number, written)
        for entry in watch.take(0):
            seen[entry.key] = entry.value
    for entry in watch.take(0):
        seen[entry.key] = entry.value
    wanted = {key: {"n": number} for key, (number, _) in model.items()}
    assert {entry.key: entry.value for entry in values.list_entries()} == wanted
    assert {key: value for key, value in seen.items() if value is not None} == wanted
