"""Listens to the logs of one attempt from a thread, and says into the inbox what is worth telling."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from prime_train.diagnose.cause import Cause
from prime_train.events import LogNoticed
from prime_train.supervise.listening import Listener

_EVERY_S = 1.0


class Ear:
    """A Listener with a thread of its own: a flood of lines, or a file system that does not answer, holds up that."""

    def __init__(self, logs: Sequence[Path], folders: Sequence[Path], attempt: int, inbox: SimpleQueue[object]) -> None:
        self._listener = Listener(logs, folders)
        self._attempt = attempt
        self._inbox = inbox
        self._ended = threading.Event()
        self._lock = threading.Lock()  # held while the listener works
        self._thread = threading.Thread(target=self._listen, name=f"ear-{attempt}", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with self._lock:
                notices = self._listener.poll()
            for notice in notices:
                self._inbox.put(LogNoticed(self._attempt, *notice))

    def cause(self) -> Cause | None:
        """The root cause; call it when nothing writes any more. None where a log does not answer."""
        self._ended.set()
        if not self._lock.acquire(timeout=10.0):  # a read that hangs: the network file system is gone
            return None
        try:
            return self._listener.cause()
        finally:
            self._lock.release()

    def end(self) -> None:
        self._ended.set()
