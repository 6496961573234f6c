"""Tells the trainer when to end: on a stop file, on a signal, or when the supervisor is gone. Saves nothing itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from prime_train.process_id import Identity, parse_identity

SUPERVISOR_ENV = "PRIME_TRAIN_SUPERVISOR"  # "PID:START_TICKS"
_WATCH_INTERVAL_S = 1.0
_LOOK_INTERVAL_S = 0.1
_ORPHANED = 1


class StopFlag:
    """Asked by SIGTERM, SIGINT or the existence of a file. Looked at between two steps, and all through the set-up."""

    def __init__(self, request: Path) -> None:
        self._request = request
        self._signalled = False

    def listen(self) -> None:
        """Let SIGTERM and SIGINT raise the flag, in place of ending the process. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def asked(self) -> bool:
        return self._signalled or self._request.exists()

    @contextmanager
    def ends_at_once(self, last_word: Callable[[], None]) -> Iterator[None]:
        """While inside, a stop ends this process with 0 after `last_word`: for where there is nothing to save.

        From a thread, because a set-up waits long in calls that look at nothing: a download, a tokenizer that is
        trained, another rank. An error inside is part of the stop where one is asked for: it is most often the echo
        of a rank that has ended.
        """
        left = threading.Event()
        ending = threading.Lock()  # held to the end of the process: the last word is said once

        def end() -> None:
            ending.acquire()
            last_word()
            os._exit(0)

        def look() -> None:
            while not left.is_set():
                if self.asked():
                    end()
                left.wait(_LOOK_INTERVAL_S)

        looking = threading.Thread(target=look, name="stop-watch", daemon=True)
        looking.start()
        try:
            yield
        except Exception:
            if self.asked():
                end()
            raise
        finally:
            left.set()
            looking.join()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True


def watch_supervisor() -> None:
    """End this process at once when the supervisor named in the environment is gone. Without one: no watch.

    An orphan would go on writing into a run directory that the next supervisor believes to be its own.
    """
    named = os.environ.get(SUPERVISOR_ENV)
    if not named:
        return
    threading.Thread(target=_watch, args=(parse_identity(named),), name="supervisor-watch", daemon=True).start()


def _watch(supervisor: Identity) -> None:
    while supervisor.alive:
        time.sleep(_WATCH_INTERVAL_S)
    with suppress(OSError):  # a full disk may not keep an orphan alive
        os.write(2, b"prime-train trainer: the supervisor is gone; ending\n")
    os._exit(_ORPHANED)  # from a thread, past a hung step, without waiting for a save
