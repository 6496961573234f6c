"""Messages over a bus that loses some of them: each arrives once and in order, or the channel is lost."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.bus.base import UnknownOutcome
from prime_train.bus.local import LocalBus
from prime_train.supervise.machines import channel as channels
from prime_train.supervise.machines import liveness
from prime_train.supervise.machines.channel import Channel, read_frame
from prime_train.supervise.machines.protocol import KINDS, Lost, Message

_NUMBERS = {int: st.integers(-(2**63), 2**63), float: st.floats(allow_nan=False, allow_infinity=False)}
_VALUES: dict[type, st.SearchStrategy[object]] = {**_NUMBERS, bool: st.booleans(), str: st.text()}
MESSAGES = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.fixed_dictionaries(
        {"kind": st.just(kind), **{name: _VALUES[of] for name, of in KINDS[kind].items()}}
    )
)


class LosingBus(LocalBus):
    """Some messages are lost, some fail, and some arrive twice, as around the restart of a server."""

    chance = random.Random(0)
    loss = 0.0

    def publish(self, subject: str, body: Mapping[str, Any], message_id: str) -> None:
        drawn = self.chance.random()
        if drawn < self.loss / 2:
            return
        if drawn < self.loss:
            raise UnknownOutcome("there is no connection")
        for _ in range(2 if drawn > 1.0 - self.loss else 1):
            super().publish(subject, body, message_id)


class Pair:
    def __init__(self, folder: Path) -> None:
        self.bus = LosingBus(folder / "bus")
        self.left, self.right = self._end("pt.a", "pt.b"), self._end("pt.b", "pt.a")

    def _end(self, hears: str, speaks: str) -> Channel:
        arrived = self.bus.subscribe(hears)

        def pull(limit_s: float) -> None:
            for received in arrived.take(limit_s):
                frame = read_frame(received)
                if frame is not None and frame.receiver in ("", made.own):
                    made.hear(frame)

        made = Channel(self.bus, speaks, pull)
        return made


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def _as_sent(message: Message) -> Message:
    return {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in message.items()
    }


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, max_size=12), st.integers(0, 2**16), st.floats(0.0, 0.4))
def test_each_message_arrives_once_and_in_order(messages: list[Message], seed: int, loss: float) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "_FIRST_AGAIN_S", 0.0)
        patch.setattr(channels, "_LAST_AGAIN_S", 0.0)
        pair = Pair(Path(folder))
        pair.bus.chance, pair.bus.loss = random.Random(seed), loss
        for message in messages:
            pair.left.send(message)
        found: list[Message] = []
        for _ in range(3000):
            found += pair.right.receive()
            assert pair.left.receive() == []
            if pair.left.is_delivered:
                break
        assert found == [_as_sent(message) for message in messages]
        assert pair.left.is_delivered


def test_what_is_sent_waits_while_the_other_side_takes_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "SEND_LIMIT_S", 0.2)
    monkeypatch.setattr(channels, "_WINDOW", 1000)
    pair.left.send({"kind": "log", "text": "x" * 5000})  # one message goes, of whatever length
    with pytest.raises(Lost, match="has taken nothing"):
        pair.left.send({"kind": "log", "text": "x"})


def test_a_closed_channel_is_lost_after_its_last_message(pair: Pair) -> None:
    pair.left.send({"kind": "closed", "code": 3})
    pair.left.close()
    assert pair.right.receive() == [{"kind": "closed", "code": 3}]
    with pytest.raises(Lost, match="closed the connection"):
        pair.right.receive()


def test_silence_is_lost_and_signs_of_life_end_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "ALIVE_S", -1.0)
    pair.left.receive()  # a sign of life is due at once
    pair.right.heard_s = 0.0
    assert pair.right.receive() == []
    assert pair.right.silent_s < 60.0
    pair.right.heard_s = -1e9
    with pytest.raises(Lost, match="no sign of life for 60 s"):
        pair.right.receive()


def test_a_side_that_has_gone_is_lost_before_it_is_silent_for_long(pair: Pair) -> None:
    gone: Callable[[], float | None] = lambda: pair.right.heard_s - 6.0  # noqa: E731
    pair.right.find_gone = gone
    with pytest.raises(Lost, match="its connection has ended"):
        pair.right.receive()


def test_another_process_in_the_place_of_the_first_is_a_loss(pair: Pair, tmp_path: Path) -> None:
    del tmp_path
    pair.left.send({"kind": "test"})
    assert pair.right.receive() == [{"kind": "test"}]
    pair.left.own = "another"
    pair.left.send({"kind": "test"})
    with pytest.raises(Lost, match="another process"):
        pair.right.receive()


@given(
    st.dictionaries(
        st.sampled_from(["from", "to", "number", "heard", "message", "is_last"]),
        st.none()
        | st.integers()
        | st.text(max_size=3)
        | st.booleans()
        | st.dictionaries(st.text(max_size=3), st.none()),
    )
)
@settings(deadline=None)
def test_what_is_no_frame_is_dropped(body: dict[str, Any]) -> None:
    from prime_train.bus.base import BusMessage

    found = read_frame(BusMessage("pt.a", "x", body))
    assert found is None or found.number >= 0
