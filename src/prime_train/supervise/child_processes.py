"""The processes of one attempt: starts them in order, ends them together. Decides nothing and writes no event."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from itertools import count
from queue import Empty, SimpleQueue

import psutil

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.supervise import process
from prime_train.supervise.launch.launch import Launch
from prime_train.supervise.process import Exited, Running

EXIT_LIMIT_S = 30.0  # for a child to end after SIGKILL; one that waits in the kernel may never
SERVICE_GRACE_S = 10.0  # for a service to end by itself when the trainer has


class Children:
    """What runs of an attempt, by role. `spared` names processes that a sweep leaves alone."""

    def __init__(self, run_dir: RunDir, inbox: SimpleQueue[object], spared: Callable[[], Sequence[Identity]]) -> None:
        self._run_dir = run_dir
        self._inbox = inbox
        self._spared = spared
        self._running: dict[str, Running] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    def start(self, launch: Launch, attempt: int) -> Running:
        """Start one. Raises OSError. Call it from the main thread: see process.spawn."""
        _lay_out(launch)
        running = process.spawn(launch, attempt, self._inbox)
        self._running[launch.role] = running
        return running

    def exited(self, exited: Exited) -> Running | None:
        """Take note that one has ended; None where it is none of these, but of an attempt that was given up."""
        running = self._running.get(exited.role)
        if running is None or running.attempt != exited.attempt:
            return None
        return self._running.pop(exited.role)

    def signal(self, number: signal.Signals, *, roots: bool = False) -> None:
        """Send a signal to every process of every tree, or to those alone that were started here."""
        for running in self._running.values():
            if roots:
                process.signal_root(running.identity, number)
            else:
                process.signal_tree(running.identity, number)

    def end_rest(self, *, gently: bool) -> list[psutil.Process]:
        """End what is left; those that outlive SIGKILL. `gently`: SIGTERM first, and a while to heed it."""
        if gently and self._running:
            self.signal(signal.SIGTERM, roots=True)
            self._await(SERVICE_GRACE_S)
        self.signal(signal.SIGKILL)
        stuck = process.sweep(self._run_dir.path, self._spared())
        if not stuck:
            self._await(EXIT_LIMIT_S)
        self._running.clear()
        return stuck

    def _await(self, limit_s: float) -> None:
        """Hear of their exits; other messages go back into the inbox."""
        put_back: list[object] = []
        give_up_s = time.monotonic() + limit_s
        while self._running:
            try:
                message = self._inbox.get(timeout=max(0.0, give_up_s - time.monotonic()))
            except Empty:
                break
            if isinstance(message, Exited):
                self.exited(message)
            else:
                put_back.append(message)
        for message in put_back:
            self._inbox.put(message)


def _lay_out(launch: Launch) -> None:
    """Write the files that it reads, and put out of its way what may not be there. Raises OSError."""
    for path, text in launch.files:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    for path in launch.aside:
        if path.exists():
            names = (path.with_name(f"{path.name}.aside-{number}") for number in count(1))
            path.rename(next(name for name in names if not name.exists()))
