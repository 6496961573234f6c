"""Starts, finds and ends whole process trees.

Every process of a run has PRIME_TRAIN_RUN in its environment, which finds processes that left the tree and session.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import psutil

from prime_train.core.process_id import Identity, identify, parse_identity, signal_checked, signal_identity
from prime_train.core.rundir import make_folder, open_private
from prime_train.events.record import retry
from prime_train.supervise.launch import control_group, environment
from prime_train.supervise.launch.control_group import list_members
from prime_train.supervise.launch.program import SHIM, Launch, add_reporting_guard

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SWEEP_LIMIT_S = 10.0  # for processes to end after SIGKILL


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


_REPORT_LIMIT_S = 60.0  # for the guard to start the program


def spawn(launch: Launch, attempt: int, inbox: SimpleQueue[object], group: Path | None = None) -> Running:
    """Start `launch` below a guard and append its output to its log. Raises OSError.

    A small shim sets the parent-death signal and the file limit, joins the control group `group`, and becomes the
    guard. subprocess's preexec_fn would run Python between fork and exec, which may deadlock in a process with threads.
    Call it only from the main thread, because the kernel sends the parent-death signal when the *thread* that forked
    ends.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("the parent-death signal is bound to the thread that forks: spawn from the main thread")
    make_folder(launch.log.parent)
    process, identity = retry(lambda: _start_below_guard(launch, group))  # fork may fail with EAGAIN

    def wait() -> None:
        inbox.put(Exited(attempt, launch.role, process.wait()))

    # A thread for each child, because the loop must not wait for one while it watches the others.
    threading.Thread(target=wait, name=f"wait-{attempt}-{launch.role}", daemon=True).start()
    return Running(attempt, identity, launch.log)


def _start_below_guard(launch: Launch, group: Path | None) -> tuple[subprocess.Popen[bytes], Identity]:
    """The guard, and the identity of the program: of the guard itself if the launch has one of its own."""
    ours, its = os.pipe()
    try:
        command = add_reporting_guard(launch.argv, its)
        with open(launch.log, "ab", opener=open_private) as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), str(group or ""), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=launch.cwd,
                env=os.environ | {variable.name: variable.value for variable in launch.variables},
                start_new_session=True,
                pass_fds=(its,),
            )
        if command == launch.argv:
            identity = identify(process.pid)
            assert identity is not None, "a child that has not been waited for has an entry in /proc"
            return process, identity
        os.close(its)
        its = -1
        return process, _read_report(ours, process)
    finally:
        os.close(ours)
        if its >= 0:
            os.close(its)


def _read_report(ours: int, process: subprocess.Popen[bytes]) -> Identity:
    """The identity that the guard writes. Raises OSError, after the end of the guard, if there is none."""
    report = select.poll()  # select() takes no descriptor from 1,024 on
    report.register(ours, select.POLLIN)
    ready = report.poll(_REPORT_LIMIT_S * 1000.0)
    text = os.read(ours, 256).decode("ascii", "replace").strip() if ready else ""  # one write of the guard
    with contextlib.suppress(ValueError):
        return parse_identity(text)
    killed = not text and bool(ready) and process.wait() == -signal.SIGKILL
    process.kill()
    process.wait()
    if text.startswith("errno "):
        number = int(text.removeprefix("errno "))
        raise OSError(number, os.strerror(number))
    # A kill is no property of the program: `retry` starts it again, as after a fork that found no memory.
    raise OSError(errno.EAGAIN if killed else errno.ECHILD, "its guard ended before it started the program")


def signal_tree(child: Identity, number: signal.Signals) -> None:
    """Send a signal to a process that was started here, to its descendants and to the rest of its session."""
    if not child.alive:
        return
    for identity in (child, *_list_tree(child)):
        signal_root(identity, number)


def signal_root(child: Identity, number: signal.Signals) -> None:
    """Send a signal only to this process, which ends the rest of its tree itself."""
    with contextlib.suppress(PermissionError):  # a program that became another user's
        signal_identity(child, number)


def _list_tree(child: Identity) -> list[Identity]:
    """The processes below `child`, and the others of the session that it leads.

    Its number is its pid, so no other session has that number while `child` lives.
    """
    pids: list[int] = []
    with contextlib.suppress(psutil.Error):
        pids += [process.pid for process in psutil.Process(child.pid).children(recursive=True)]
    pids += [pid for pid in psutil.pids() if pid not in pids and _session(pid) == child.pid]
    return [found for pid in pids if pid != child.pid and (found := identify(pid)) is not None]


def find_run_processes(run_path: Path, supervisor: Identity | None = None) -> list[psutil.Process]:
    """Processes of the run, without the ancestors of this process. With `supervisor`, only those that it started.

    A process belongs to the run if it has the run's mark in its environment, if it is in a control group of the run, if
    it is below this process, or if its output goes to a log of the run: vLLM's engine core overwrites its environment
    with its title, and outlives an API server and a guard that were killed (vLLM 0.32). A pid in a file proves nothing.
    """
    # An ancestor has the mark if a program of the run started this command. To end it would end this process.
    own = psutil.Process()
    spared = {own.pid, *(process.pid for process in own.parents())}
    grouped = {pid for group in control_group.find_groups(run_path, supervisor) for pid in list_members(group)}
    found = {process.pid: process for process in own.children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in grouped or _is_marked(process, run_path, supervisor):
                found[process.pid] = process
    return [process for pid, process in found.items() if pid not in spared]


def _is_marked(process: psutil.Process, run_path: Path, supervisor: Identity | None) -> bool:
    """Whether the process has the run's mark, or writes to a log of the run. Raises psutil.Error, OSError."""
    variables = process.environ()
    if variables.get(environment.RUN) == str(run_path):
        return supervisor is None or variables.get(environment.SUPERVISOR) == str(supervisor)
    return supervisor is None and environment.RUN not in variables and _writes_to_log(process.pid, run_path)


def _writes_to_log(pid: int, run_path: Path) -> bool:
    """Whether standard output and standard error of a process go to a log of an attempt.

    Raises OSError. Only a process that was started there has that: who reads a log does not have it open for writing.
    """
    attempts = f"{run_path}/attempts/"
    for number in (1, 2):
        place = str(Path(f"/proc/{pid}/fd/{number}").readlink())
        if not place.startswith(attempts) or not place.endswith(".log"):
            return False
        flags = re.search(r"^flags:\s*(\d+)", Path(f"/proc/{pid}/fdinfo/{number}").read_text("ascii"), re.MULTILINE)
        if flags is None or int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY:
            return False
    return True


def _session(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return None


def sweep(
    run_path: Path, spare: Iterable[Identity] = (), *, supervisor: Identity | None = None
) -> list[psutil.Process]:
    """End and reap every process of the run. Returns those that are alive 10 s after SIGKILL.

    `spare`: children of this process that do not belong to the run, with the sessions that they lead. `supervisor`: end
    only the processes that this one started. Without it, those of every supervisor: only the holder of the run's lock
    may do that.
    """
    spared = {identity.pid for identity in spare if identity.alive}
    # Again and again, because a process that is about to die may still fork.
    give_up_s = time.monotonic() + _SWEEP_LIMIT_S
    while True:
        groups = control_group.find_groups(run_path, supervisor)
        for group in groups:
            control_group.kill_group(group)
        left = leave_out_spared(find_run_processes(run_path, supervisor), spared)
        living = []
        for process in left:
            if _reap(process):
                continue
            living.append(process)
            with contextlib.suppress(psutil.Error, PermissionError):
                signal_checked(process.pid, process.is_running, signal.SIGKILL)  # by its start time
        # A group that is not empty has processes that /proc does not show yet.
        used = [group for group in groups if not control_group.remove_group(group)]
        if not (living or used) or time.monotonic() > give_up_s:
            return living
        time.sleep(0.01)


def leave_out_spared(found: Iterable[psutil.Process], spared: Collection[int]) -> list[psutil.Process]:
    """The processes without those with the pids in `spared`, and those in a session that one of them leads."""
    # A test of GPUs starts a process for each of a pair. A session is numbered by its leader's pid.
    return [one for one in found if one.pid not in spared and _session(one.pid) not in spared]


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
