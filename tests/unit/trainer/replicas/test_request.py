"""A request for a quorum beside other work: who waits, and what a connection that was left may still do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest

from prime_train.trainer.replicas.request import HandOver, OneRankClient, QuorumRequest, State

WAIT_S = 30.0


def _start(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _wait(gone: threading.Event) -> None:
    gone.wait(WAIT_S)


def test_the_training_is_handed_over_when_the_step_has_ended() -> None:
    state: State = {"step": 4}
    given: list[State] = []
    hand_over = HandOver(lambda: dict(state), state.update)
    hand_over.close()
    reading = _start(lambda: given.append(hand_over.read()))
    state["step"] = 5  # by the update of the weights, which is not over yet
    hand_over.open()
    reading.join(WAIT_S)
    assert given == [{"step": 5}]
    hand_over.load({"step": 7})
    assert state == {"step": 7}


def test_a_connection_that_was_left_changes_no_training() -> None:
    state: State = {"step": 4}
    failed: list[str] = []

    def load() -> None:
        try:
            hand_over.load({"step": 9})
        except ConnectionAbortedError as error:
            failed.append(str(error))

    hand_over = HandOver(lambda: dict(state), state.update)
    hand_over.close()
    loading = _start(load)
    hand_over.end()
    loading.join(WAIT_S)
    assert (failed, state) == (["this replica has left the quorum"], {"step": 4})
    with pytest.raises(ConnectionAbortedError):
        hand_over.read()


def test_a_request_gives_its_answer_or_its_error() -> None:
    done: list[int] = []
    QuorumRequest(lambda: done.append(1)).wait(lambda: None)
    assert done == [1]

    def fail() -> None:
        raise TimeoutError("the lighthouse is late")

    with pytest.raises(TimeoutError, match="the lighthouse is late"):
        QuorumRequest(fail).wait(lambda: None)


def test_a_request_that_is_not_answered_ends_with_what_a_look_raises() -> None:
    gone = threading.Event()

    def look() -> None:
        raise LookupError("another lighthouse")

    with pytest.raises(LookupError, match="another lighthouse"):
        QuorumRequest(lambda: _wait(gone)).wait(look)
    gone.set()


@pytest.mark.parametrize("vote", [True, False])
def test_the_vote_of_a_single_rank_is_the_decision(vote: bool) -> None:
    client = OneRankClient(SimpleNamespace(_quorum=lambda: "asked"))
    assert client.should_commit(0, 3, vote, timeout=timedelta(seconds=1)) is vote
    assert client._quorum() == "asked"
