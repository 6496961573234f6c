from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from prime_train.core.http import Answer, send_request


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts a connection and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/health"


def test_a_server_that_states_nothing_is_not_waited_for(silent: str) -> None:
    assert send_request("GET", silent, 1.0) == Answer(0, "no answer within 1 s")


def test_where_nothing_listens_the_reason_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answer = send_request("GET", f"http://127.0.0.1:{port}/health", 5.0)
    assert (answer.status, answer.refused) == (0, True)
    assert "refused" in answer.words


def test_words_are_one_short_line() -> None:
    assert Answer(500, "a\n  b").words == "500 a b"
    assert len(Answer(500, "x" * 1000).words) == 204
