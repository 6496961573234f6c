"""Calls an environment on threads of its own, each with a time limit. A call that hangs is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

from prime_train.environments.environment import EnvironmentFailed

Result = TypeVar("Result")

MAX_HANGING = 64  # calls that are left behind at the same time; each holds a thread


class LimitedCalls:
    """Threads that wait for the next call. May be used from several threads at once."""

    def __init__(self, max_hanging: int = MAX_HANGING) -> None:
        self._max_hanging = max_hanging
        self._lock = threading.Lock()
        self._idle: list[_Caller] = []
        self._hanging: list[_Caller] = []

    def call(self, function: Callable[[], Result], limit_s: float, what: str) -> Result:
        """The result of `function`, or the exception that it raised.

        Raises EnvironmentFailed after `limit_s`, or at once if too many calls hang already. `what` names the call.
        """
        caller = self._take(what)
        answer: Future[Any] = Future()
        caller.calls.put((function, answer))
        wait([answer], limit_s)
        with self._lock:  # so that the thread of an answer that comes right now is not left behind
            if answer.done():
                self._idle.append(caller)
            else:
                self._hanging.append(caller)
                caller.calls.put(None)  # the thread ends if the call ever returns
                raise EnvironmentFailed(f"{what} took longer than {limit_s:.4g} s")
        result: Result = answer.result()
        return result

    def close(self) -> None:
        """End the idle threads. Those that hang are daemons, so the process can end without them."""
        with self._lock:
            for caller in self._idle:
                caller.calls.put(None)
            for caller in self._idle:
                caller.thread.join()
            self._idle.clear()

    def _take(self, what: str) -> _Caller:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._hanging = [caller for caller in self._hanging if caller.thread.is_alive()]
            if len(self._hanging) >= self._max_hanging:
                raise EnvironmentFailed(f"{what} was not called: {len(self._hanging)} earlier calls still hang")
        return _Caller()


class _Caller:
    """A thread, and the calls that it makes one after the other; None ends it."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="environment-call", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (call := self.calls.get()) is not None:
            function, answer = call
            try:
                answer.set_result(function())
            except BaseException as error:  # handed to the caller, also a SystemExit of an environment
                answer.set_exception(error)
