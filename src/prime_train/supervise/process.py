"""Starts and ends whole process trees, and holds those of one attempt.

Every process of a run has PRIME_TRAIN_RUN in its environment, which finds processes that left the tree and session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil

from prime_train.core.process_id import Identity, identify
from prime_train.core.rundir import RunDir, make_folder, open_private, write_atomic
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.launch import SHIM, Launch
from prime_train.supervise.launch.run_directory import set_aside

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Exited:
    """Put into the inbox when a child of an attempt has ended. `returncode` as in subprocess."""

    attempt: int
    role: str
    returncode: int


@dataclass(frozen=True, slots=True)
class Running:
    """A child that this process started."""

    attempt: int
    identity: Identity
    log: Path


def become_subreaper() -> None:
    """Adopt the orphans of the trainer, because PID 1 of a container often does not reap them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(error)}")


def spawn(launch: Launch, attempt: int, inbox: SimpleQueue[object]) -> Running:
    """Start `launch` in a session of its own and append its output to its log. Raises OSError.

    A small shim sets the parent-death signal and the file limit and then becomes the trainer. subprocess's preexec_fn
    would run Python between fork and exec, which may deadlock in a process with threads. Call it only from the main
    thread, because the kernel sends the parent-death signal when the *thread* that forked ends.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("the parent-death signal is bound to the thread that forks: spawn from the main thread")
    make_folder(launch.log.parent)
    with open(launch.log, "ab", opener=open_private) as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), *launch.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=launch.cwd,
            env=os.environ | {variable.name: variable.value for variable in launch.variables},
            start_new_session=True,
        )
    identity = identify(process.pid)
    assert identity is not None, "a child that has not been waited for has an entry in /proc"

    def wait() -> None:
        inbox.put(Exited(attempt, launch.role, process.wait()))

    threading.Thread(target=wait, name=f"wait-{attempt}-{launch.role}", daemon=True).start()
    return Running(attempt, identity, launch.log)


def signal_tree(child: Identity, number: signal.Signals) -> None:
    """Send a signal to the child's group, and to its descendants in other sessions."""
    if not child.alive:
        return
    descendants = _descendants(child.pid)
    group = child.pid  # the child leads its session
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
    for process in descendants:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) != group:
                process.send_signal(number)


def signal_root(child: Identity, number: signal.Signals) -> None:
    """Send a signal only to the child, which ends the rest of its tree itself."""
    if child.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def find_run_processes(run_path: Path) -> list[psutil.Process]:
    """Processes of the run, without the ancestors of this process.

    They have the run's mark, or were adopted as orphans, or belong to a session of a process with the mark: vLLM's
    engine core overwrites its environment with its title, and outlives an API server that was killed (vLLM 0.32).
    """
    own = psutil.Process()
    spared = {own.pid, *(process.pid for process in own.parents())}
    mark = str(run_path)
    marked: dict[int, psutil.Process] = {}
    others: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            (marked if process.environ().get(environment.RUN) == mark else others)[process.pid] = process
    sessions = {session for pid in marked if (session := _session(pid)) is not None} - {os.getsid(0)}
    of_the_run = {session for session in sessions if session in marked or not psutil.pid_exists(session)}
    unmarked = {pid: process for pid, process in others.items() if _session(pid) in of_the_run}
    orphans = {process.pid: process for process in own.children(recursive=True)}
    return [process for pid, process in (orphans | marked | unmarked).items() if pid not in spared]


def _session(pid: int) -> int | None:
    """The session of `pid`. Its number is the pid of its first process, and is not reused while the session exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return None


def sweep(run_path: Path, spare: Iterable[Identity] = (), deadline_s: float = 10.0) -> list[psutil.Process]:
    """End and reap every process of the run. Returns those that are alive `deadline_s` seconds after SIGKILL.

    `spare`: children of this process that do not belong to the run.
    """
    spared = {identity.pid for identity in spare if identity.alive}
    give_up_s = time.monotonic() + deadline_s
    while True:
        left = [process for process in find_run_processes(run_path) if process.pid not in spared]
        living = []
        for process in left:
            if _reap(process):
                continue
            living.append(process)
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not living or time.monotonic() > give_up_s:
            return living
        time.sleep(0.01)


def _reap(process: psutil.Process) -> bool:
    """Whether the process has ended. An adopted orphan is reaped, because it would stay a zombie."""
    try:
        if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
    except psutil.NoSuchProcess:
        return True
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return True


def list_own_children() -> tuple[Identity, ...]:
    """The children of this process, which `sweep` must spare."""
    found = (identify(process.pid) for process in psutil.Process().children(recursive=True))
    return tuple(identity for identity in found if identity is not None)


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
        running = spawn(launch, attempt, self._inbox)
        self._running[launch.role] = running
        return running

    def remove(self, exited: Exited) -> bool:
        """Remove a process that has ended. Returns False for a process of an earlier attempt, which was given up."""
        running = self._running.get(exited.role)
        if running is None or running.attempt != exited.attempt:
            return False
        del self._running[exited.role]
        return True

    def signal(self, number: signal.Signals, *, roots: bool = False) -> None:
        """Send a signal to every process of every tree; with `roots`, only to the processes that were started here."""
        for running in self._running.values():
            (signal_root if roots else signal_tree)(running.identity, number)

    def end_rest(self, *, gently: bool) -> list[psutil.Process]:
        """End the remaining processes. Returns those that outlive SIGKILL. `gently`: send SIGTERM first."""
        if gently and self._running:
            self.signal(signal.SIGTERM, roots=True)
            self._await(SERVICE_GRACE_S)
        self.signal(signal.SIGKILL)
        stuck = sweep(self._run_dir.path, self._list_spared())
        if not stuck:
            self._await(EXIT_LIMIT_S)
        self._running.clear()
        return stuck

    def _await(self, limit_s: float) -> None:
        """Wait for their exits; other messages go back into the inbox."""
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
