from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from prime_train.facts.machine import BusyPort
from prime_train.facts.trials import find_busy_ports, find_free_port


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield int(listener.getsockname()[1])


@pytest.mark.parametrize("offline", [False, True])
def test_a_port_with_a_listener_is_busy(taken: int, offline: bool) -> None:
    (found,) = find_busy_ports([taken, taken], offline=offline)
    assert found.port == taken
    assert found.why


@pytest.mark.parametrize("offline", [False, True])
def test_a_port_that_was_given_back_is_free(offline: bool) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = int(listener.getsockname()[1])
    assert find_busy_ports([port], offline=offline) == ()


def test_a_port_that_is_bound_and_not_listened_on_is_busy() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = int(bound.getsockname()[1])
        assert find_busy_ports([port], offline=False) == (BusyPort(port, "it is in use"),)


def test_an_unused_port_is_free(taken: int) -> None:
    port = find_free_port()
    assert port != taken
    assert find_busy_ports([port], offline=True) == ()
