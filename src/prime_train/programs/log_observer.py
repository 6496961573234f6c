"""The thread of an observer, which writes the trainer's kinds of events for a program that writes none.

Each attempt has a thread, because a file system that does not answer must not block the supervisor. The thread starts,
signals and deletes nothing.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.watch import Alarm

_EVERY_S = 0.5
_END_S = 10.0  # for the thread to end; a thread that waits for a file system is left behind


class LogObserver(ABC):
    """One attempt of a program. It is a Watch too: `look` returns the alarms that stand.

    Call `begin` before the first process starts, so that old files are not taken for new ones; call `end` when all
    processes are gone and before the attempt is judged, so that its last event is written.
    """

    def __init__(self, name: str, run_dir: RunDir, attempt: int, role: str) -> None:
        self.name = name
        self._run_dir, self._attempt, self._role = run_dir, attempt, role
        self._process: Identity | None = None  # of `role`, as events name it
        self._is_stopping = False
        self._is_being_ended = False
        self._alarms: tuple[Alarm, ...] = ()
        self._error: Exception | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()  # held through one turn
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _prepare(self) -> None:
        """Look at the existing files, before the first process starts."""

    @abstractmethod
    def _turn(self, *, is_last: bool) -> None:
        """Read what is new, write its events, and set the alarms. `is_last`: all processes are gone."""

    @abstractmethod
    def _write_end(self, returncode: int | None) -> None:
        """Write how the attempt ended, after the last turn."""

    def begin(self) -> None:
        """Open the file of the events, look at the existing files, and start the thread."""
        self._log = EventLog(self._run_dir.events, f"{self.name}-{self._attempt:03d}")
        self._prepare()
        self._thread = threading.Thread(target=self._watch, name=f"{self.name}-{self._attempt}", daemon=True)
        self._thread.start()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """The faults that are found. Raises the error that ended the thread, if there is one."""
        del now_s
        if self._error is not None:
            raise self._error
        self._read_state(state)
        is_live = state.live is not None and state.live.number == self._attempt
        return self._alarms if is_live else ()

    def _read_state(self, state: State) -> None:
        """Read the process of the role, and whether the supervisor is ending the attempt."""
        live = state.live
        if live is None or live.number != self._attempt:
            return
        self._is_stopping = state.stop_requested_s is not None
        self._is_being_ended = live.pending_kill is not None  # the supervisor then knows the cause
        child = next((child for child in live.children if child.role == self._role), None)
        self._process = Identity(child.pid, child.start_ticks) if child is not None else None

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self, state: State | None = None, returncode: int | None = None) -> None:
        """Read the rest, write how it ended, and stop. `state`: the present state of the supervisor."""
        if self._thread is None:
            return
        if state is not None:
            self._read_state(state)
        self._over.set()
        self._thread.join(_END_S)
        if not self._lock.acquire(timeout=0.0 if self._thread.is_alive() else 1.0):
            return
        try:
            if self._error is None:
                self._turn(is_last=True)
                self._write_end(returncode)
        except Exception as error:  # as in the thread: a failed read ends no run
            self._error = error
        finally:
            self._thread = None
            self._lock.release()
            self._log.close()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                with self._lock:
                    self._turn(is_last=False)
            except Exception as error:  # of any kind: `look` raises it, so that the end of the thread is noticed
                self._error = error
                return
