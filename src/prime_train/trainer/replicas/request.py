"""Asks torchft for the next quorum beside other work, and keeps the training out of it until the step before has ended.

Joins nothing and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from threading import Event, Thread
from typing import Any

State = dict[str, Any]
_LOOK_S = 0.5  # between two looks at the lighthouse


class QuorumRequest:
    """A request for a quorum, in a thread, because torchft does not return from one whose lighthouse is gone."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._answer: Future[None] = Future()
        Thread(target=self._resolve, name="quorum", daemon=True).start()

    def wait(self, look: Callable[[], None]) -> None:
        """Wait for the answer. Raises what torchft raises, and what `look` does, which is called from time to time."""
        while True:
            try:
                return self._answer.result(_LOOK_S)
            except FutureTimeoutError:
                if self._answer.done():  # the error is that of the request
                    return self._answer.result()
                look()

    def _resolve(self) -> None:
        try:
            self._ask()
            self._answer.set_result(None)
        except Exception as error:
            self._answer.set_exception(error)


class HandOver:
    """What one connection reads and changes of a training: all of it, and only between two steps.

    A request that begins beside the end of a step may be answered before it. Another replica then waits for the
    training until that step has ended here.
    """

    def __init__(self, read: Callable[[], State], load: Callable[[State], None]) -> None:
        self._read, self._load = read, load
        self._is_open, self._is_over = Event(), False

    def open(self) -> None:
        """The step has ended."""
        self._is_open.set()

    def close(self) -> None:
        """A step has still to end."""
        self._is_open.clear()

    def end(self) -> None:
        """The connection was left: a late answer neither reads nor changes the training."""
        self._is_over = True
        self._is_open.set()

    def read(self) -> State:
        self._wait()
        return self._read()

    def load(self, state: State) -> None:
        self._wait()
        self._load(state)

    def _wait(self) -> None:
        self._is_open.wait()
        if self._is_over:
            raise ConnectionAbortedError("this replica has left the quorum")


class OneRankClient:
    """torchft's client for a replica of one rank, whose vote is the decision: its server would only send it back.

    In torchft 0.2.0 `should_commit` of the server counts the votes of the ranks of a replica and does nothing else; a
    request takes a millisecond. What torchft looks at before it and keeps after it is in its Manager, and stays.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def should_commit(self, _rank: int, _step: int, vote: bool, timeout: timedelta) -> bool:
        return vote
