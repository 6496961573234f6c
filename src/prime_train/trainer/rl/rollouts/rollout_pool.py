"""Collects many rollouts at the same time, each on a thread, in the order of their submission."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from queue import SimpleQueue

from prime_train.core.spans import Span, Spans
from prime_train.trainer.rl.engines.engine import Engine
from prime_train.trainer.rl.rollouts.collect import Assignment, ChatTokens, LimitedCalls, Means, collect
from prime_train.trainer.rl.rollouts.rollout import Outcome

_CLOSE_LIMIT_S = 5.0  # a thread that outlives it waits for an engine or an environment that hangs


class RolloutPool:
    """At most `concurrency` rollouts in progress. The threads are daemons: a hanging engine cannot keep the trainer."""

    def __init__(self, engine: Engine, chat: ChatTokens, concurrency: int) -> None:
        self._means = Means(engine, chat, LimitedCalls(), Spans("rollouts"))
        self._queue: SimpleQueue[tuple[Assignment, Future[Outcome], float] | None] = SimpleQueue()
        self._concurrency = concurrency
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, assignment: Assignment) -> Future[Outcome]:
        """The future outcome. An EngineError, and an error of the chat tokenizer, is the exception of the future."""
        if self._closed:
            raise ValueError("the pool is closed")
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(target=self._run, name=f"rollouts-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        outcome: Future[Outcome] = Future()
        self._queue.put((assignment, outcome, time.monotonic()))
        return outcome

    def close(self) -> None:
        """Cancel what has not begun, and wait for the threads: one that ends with the interpreter may abort it."""
        self._closed = True
        while not self._queue.empty():
            waiting = self._queue.get()
            if waiting is not None:
                waiting[1].cancel()
        for _ in self._threads:
            self._queue.put(None)
        until_s = time.monotonic() + _CLOSE_LIMIT_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._means.calls.close()
        self._means.spans.flush()

    def _run(self) -> None:
        while (waiting := self._queue.get()) is not None:
            assignment, outcome, asked_s = waiting
            if not outcome.set_running_or_notify_cancel():
                continue
            self._means.spans.add(Span("queue", assignment.lane, asked_s, time.monotonic(), count=1))
            try:
                outcome.set_result(collect(assignment, self._means))
            except BaseException as error:  # handed to the trainer, which takes the outcome
                outcome.set_exception(error)
