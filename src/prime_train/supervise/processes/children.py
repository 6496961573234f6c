"""Holds the running processes of one attempt: starts each, signals them, and ends the rest."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from itertools import count
from queue import Empty, SimpleQueue

import psutil

from prime_train.core.process_id import Identity, own_identity
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.supervise.launch import control_group
from prime_train.supervise.launch.program import WRAPPERS, Launch
from prime_train.supervise.launch.run_directory import set_aside
from prime_train.supervise.processes.process import (
    Exited,
    Running,
    find_run_processes,
    leave_out_spared,
    signal_root,
    signal_tree,
    spawn,
    sweep,
)
from prime_train.supervise.processes.workers import list_workers

EXIT_LIMIT_S = 30.0  # for a child to end after SIGKILL; a child that waits in the kernel may not end
SERVICE_GRACE_S = 10.0  # for a service to end by itself after the trainer


class Children:
    """The running processes of an attempt, by role. `list_spared` returns the processes that a sweep must spare."""

    def __init__(
        self, run_dir: RunDir, inbox: SimpleQueue[object], list_spared: Callable[[], Sequence[Identity]]
    ) -> None:
        self._run_dir = run_dir
        self._inbox = inbox
        self._list_spared = list_spared
        self._running: dict[str, Running] = {}

    def start(self, launch: Launch, attempt: int) -> Running:
        """Start one process. Raises OSError. Call it from the main thread: see `spawn`."""
        _prepare_files(launch)
        group = control_group.create_group(self._run_dir.path, own_identity(), attempt)
        running = spawn(launch, attempt, self._inbox, group)
        self._running[launch.role] = running
        return running

    def remove(self, exited: Exited) -> bool:
        """Remove a process that has ended. Returns False for a process of an earlier attempt, which was given up."""
        running = self._running.get(exited.role)
        if running is None or running.attempt != exited.attempt:
            return False
        del self._running[exited.role]
        return True

    def signal(self, number: signal.Signals, *, roots: bool = False, workers: bool = False) -> None:
        """Send a signal to every process of every tree; with `roots`, only to the processes that were started here.

        With `workers`, to the training processes below them, which their launcher then does not hurry.
        """
        for running in self._running.values():
            if workers:
                for worker in list_workers(running.identity, WRAPPERS):
                    signal_root(worker, number)
            else:
                (signal_root if roots else signal_tree)(running.identity, number)

    def list_left(self, limit_s: float) -> list[psutil.Process]:
        """The processes of the run that still live `limit_s` seconds after those that were started have ended."""
        spared = {identity.pid for identity in self._list_spared()}
        left = leave_out_spared(find_run_processes(self._run_dir.path, own_identity()), spared)
        alive: list[psutil.Process] = psutil.wait_procs(left, timeout=limit_s)[1] if left else []
        return alive

    def end_rest(self, *, gently: bool) -> list[psutil.Process]:
        """End the remaining processes. Returns those that outlive SIGKILL. `gently`: send SIGTERM first."""
        if gently and self._running:
            self.signal(signal.SIGTERM, roots=True)
            self._await(SERVICE_GRACE_S)
        # SIGKILL reaches the children by their identity; the sweep finds those that left the tree.
        self.signal(signal.SIGKILL)
        stuck = sweep(self._run_dir.path, self._list_spared(), supervisor=own_identity())
        if not stuck:
            self._await(EXIT_LIMIT_S)
        self._running.clear()
        return stuck

    def _await(self, limit_s: float) -> None:
        """Wait for their exits; other messages go back into the inbox."""
        # Stop requests and results of services arrive in the same queue, and must not be lost.
        put_back: list[object] = []
        give_up_s = time.monotonic() + limit_s
        while self._running:
            try:
                message = self._inbox.get(timeout=max(0.0, give_up_s - time.monotonic()))
            except Empty:
                break
            if isinstance(message, Exited):
                self.remove(message)
            else:
                put_back.append(message)
        for message in put_back:
            self._inbox.put(message)


def _prepare_files(launch: Launch) -> None:
    """Write the files that the process reads, and rename the files that must not exist. Raises OSError."""
    for path, text in launch.files:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    for path in launch.aside:
        if path.exists():
            set_aside(path, (f"{path.name}.aside-{number}" for number in count(1)))
