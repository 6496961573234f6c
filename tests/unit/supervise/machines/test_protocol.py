"""What may arrive on a connection, and what ends it."""

import contextlib
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.supervise.machines import protocol
from prime_train.supervise.machines.protocol import KINDS, Channel, Lost, join, parse

MESSAGES = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.fixed_dictionaries(
        {"kind": st.just(kind), **{name: st.from_type(of) for name, of in KINDS[kind].items()}}
    )
)


def _pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair()
    return Channel(left), Channel(right)


@given(st.lists(MESSAGES, max_size=8))
def test_messages_arrive_as_they_were_sent(messages: list[protocol.Message]) -> None:
    left, right = _pair()
    for message in messages:
        left.send(message)
    assert right.receive() == [message for message in messages if message["kind"] != "alive"]
    left.close()
    right.close()


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_other_lines_end_the_connection_and_nothing_else(line: bytes) -> None:
    with contextlib.suppress(Lost):
        assert parse(line)["kind"] in KINDS


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "launch", "attempt": True, "resume_step": 0, "micro_batch": 1},
        {"kind": "launch", "attempt": 1},
        {"kind": "run", "argv": ["sh"]},
        {"kind": ["join"]},
    ],
)
def test_a_message_of_another_shape_is_refused(message: object) -> None:
    with pytest.raises(Lost):
        parse(json.dumps(message).encode())


def test_unknown_values_of_a_message_are_dropped() -> None:
    assert parse(json.dumps({**join(1, "a"), "argv": ["sh"]}).encode()) == join(1, "a")


def test_a_closed_connection_is_lost() -> None:
    left, right = _pair()
    left.close()
    with pytest.raises(Lost, match="closed the connection"):
        right.receive()
    right.close()


def test_a_line_without_an_end_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINE_BYTES", 100)
    left, right = _pair()
    left.socket.sendall(b"x" * 500)
    with pytest.raises(Lost, match="without an end"):
        right.receive()
    left.close()
    right.close()


def test_silence_is_lost_and_signs_of_life_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = _pair()
    monkeypatch.setattr(protocol, "ALIVE_S", -1.0)
    left.receive()  # a sign of life is due at once
    right.heard_s = 0.0
    assert right.receive() == []
    assert right.heard_s > 0.0
    right.heard_s = -1e9
    left.socket.settimeout(0)
    with pytest.raises(Lost, match="no sign of life for 60 s"):
        right.receive()
    left.close()
    right.close()
