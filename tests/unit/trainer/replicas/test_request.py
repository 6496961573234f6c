"""A request for a quorum beside other work: who waits, and what a connection that was left may still do."""

from __future__ import annotations

from datetime import timedelta
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace

import pytest

from prime_train.trainer.replicas.request import OneRankClient, QuorumAsker, State

WAIT_S = 30.0


def _wait(gone: Event) -> None:
    gone.wait(WAIT_S)


class Training:
    """A training whose state another replica reads and writes."""

    def __init__(self) -> None:
        self.state: State = {"step": 4}
        self.asker = QuorumAsker(lambda: dict(self.state), self.state.update)


def _pass() -> None:
    pass


def test_the_training_is_handed_over_when_the_step_has_ended() -> None:
    training, given = Training(), list[State]()
    asker = training.asker
    asker.ask(lambda: given.append(asker.read()))
    training.state["step"] = 5  # by the update of the weights, which ends with it
    asker.await_answer(_pass)
    assert given == [{"step": 5}]
    asker.ask(lambda: asker.load({"step": 7}))
    assert training.state == {"step": 5}
    asker.await_answer(_pass)
    assert (training.state, asker.is_asked) == ({"step": 7}, False)


def test_a_connection_that_was_left_changes_no_training() -> None:
    training, failed = Training(), SimpleQueue[str]()

    def load() -> None:
        try:
            training.asker.load({"step": 9})
        except ConnectionAbortedError as error:
            failed.put(str(error))

    training.asker.ask(load)
    training.asker.end()
    assert failed.get(timeout=WAIT_S) == "this replica has left the quorum"
    assert training.state == {"step": 4}


def test_an_error_of_a_request_is_raised_where_its_answer_is_awaited() -> None:
    def fail() -> None:
        raise TimeoutError("the lighthouse is late")

    asker = Training().asker
    asker.ask(fail)
    with pytest.raises(TimeoutError, match="the lighthouse is late"):
        asker.await_answer(_pass)


def test_a_request_that_is_not_answered_ends_with_what_a_look_raises() -> None:
    gone = Event()

    def look() -> None:
        raise LookupError("another lighthouse")

    asker = Training().asker
    asker.ask(lambda: _wait(gone))
    with pytest.raises(LookupError, match="another lighthouse"):
        asker.await_answer(look)
    gone.set()


@pytest.mark.parametrize("vote", [True, False])
def test_the_vote_of_a_single_rank_is_the_decision(vote: bool) -> None:
    client = OneRankClient(SimpleNamespace(_quorum=lambda: "asked"))
    assert client.should_commit(0, 3, vote, timeout=timedelta(seconds=1)) is vote
    assert client._quorum() == "asked"
