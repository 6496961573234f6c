"""Asks torchft for the next quorum beside other work, and keeps the training out of it until the step before has ended.

Joins nothing and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

State = dict[str, Any]
_LOOK_S = 0.5  # between two looks at the lighthouse


class QuorumAsker:
    """Asks for the quorums of one connection, and is what the connection reads and changes of the training.

    A request that begins beside the end of a step may be answered before it. Another replica then waits for the
    training until that step has ended here, because it is to have all of the step.
    """

    def __init__(self, read: Callable[[], State], load: Callable[[State], None]) -> None:
        self._read, self._load = read, load
        self._is_settled, self._is_over = Event(), False
        self._answer: Future[None] | None = None
        self._asked: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        # A thread, because torchft does not return from a quorum whose lighthouse is gone; and one for all quorums,
        # because the loop would wait for the start of another one in each step: 3 ms on a busy machine.
        Thread(target=self._resolve, name="quorum", daemon=True).start()

    @property
    def is_asked(self) -> bool:
        return self._answer is not None

    def ask(self, ask: Callable[[], None]) -> None:
        """Begin to ask, while a step has still to end."""
        self._is_settled.clear()
        self._answer = Future()
        self._asked.put((ask, self._answer))

    def await_answer(self, look: Callable[[], None]) -> None:
        """Wait for the answer, when the step has ended. Raises what torchft raises, and what `look` does.

        `look` is called from time to time.
        """
        assert self._answer is not None
        self._is_settled.set()
        while True:
            try:
                self._answer.result(_LOOK_S)
                break
            except FutureTimeoutError:
                if self._answer.done():  # the error is that of the request
                    raise
                look()
        self._answer = None

    def end(self) -> None:
        """The connection was left: a late answer neither reads nor changes the training."""
        self._is_over = True
        self._is_settled.set()
        self._asked.put(None)

    def read(self) -> State:
        self._settle()
        return self._read()

    def load(self, state: State) -> None:
        self._settle()
        self._load(state)

    def _settle(self) -> None:
        self._is_settled.wait()
        if self._is_over:
            raise ConnectionAbortedError("this replica has left the quorum")

    def _resolve(self) -> None:
        while (asked := self._asked.get()) is not None:
            ask, answer = asked
            try:
                ask()
                answer.set_result(None)
            except Exception as error:
                answer.set_exception(error)


class OneRankClient:
    """torchft's client for a replica of one rank, whose vote is the decision: its server would only send it back.

    In torchft 0.2.0 `should_commit` of the server counts the votes of the ranks of a replica and does nothing else; a
    request takes a millisecond. What torchft looks at before it and keeps after it is in its Manager, and stays.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def should_commit(self, _rank: int, _step: int, vote: bool, **_limit: timedelta) -> bool:
        return vote
