"""Listens to the logs of one attempt from a thread, and says into the inbox what is worth telling."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from prime_train.diagnose.cause import Cause
from prime_train.events import LogNoticed
from prime_train.supervise.listening import Listener

_EVERY_S = 1.0


class Ear:
    """A Listener with a thread of its own: a flood of lines, or a file system that does not answer, holds up that."""

    def __init__(
        self, logs: Sequence[Path], folders: Sequence[Path], attempt: int, inbox: SimpleQueue[object], own_log: Path
    ) -> None:
        self._listener = Listener(logs, folders)
        self._own_log = own_log
        self._attempt = attempt
        self._inbox = inbox
        self._ended = threading.Event()
        self._lock = threading.Lock()  # held while the listener works
        self._thread = threading.Thread(target=self._listen, name=f"ear-{attempt}", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._ended.wait(_EVERY_S):
            try:
                with self._lock:
                    notices = self._listener.poll()
            except Exception as error:  # of whatever kind: a line that nobody foresaw must not end the listening unsaid
                self._inbox.put(LogNoticed(self._attempt, "UNREAD", self._failed(error), str(self._own_log), 0))
                return
            for notice in notices:
                self._inbox.put(LogNoticed(self._attempt, *notice))

    def cause(self) -> Cause | None:
        """The root cause, once nothing writes any more; None where a log does not answer, or the search fails."""
        self._ended.set()
        if not self._lock.acquire(timeout=10.0):  # a read that hangs: the network file system is gone
            return None
        try:
            return self._listener.cause()
        except Exception as error:  # as above: the run goes on by what else is known of the end
            self._failed(error)
            return None
        finally:
            self._lock.release()

    def _failed(self, error: Exception) -> str:
        """Write down what went wrong here, and say it in words."""
        with contextlib.suppress(OSError):  # the words say it where its traceback finds no room
            self._own_log.parent.mkdir(parents=True, exist_ok=True)
            with open(self._own_log, "a", encoding="utf-8") as file:
                file.write("".join(traceback.format_exception(error)))
        return f"the logs are followed no more: {type(error).__name__}: {error}; please report the traceback"

    def end(self) -> None:
        self._ended.set()
