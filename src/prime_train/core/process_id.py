"""Process identity: pid and start time together identify one process for ever, so a signal reaches that one or none.

Standard library only.

A pid alone may belong to another process later. The lock of a run and the IN_USE marks of a checkpoint contain the text
"PID:START_TICKS HOST", which only this module writes and parses.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prime_train.core import outside
from prime_train.core.outside import MARK_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """One process. `start_ticks`: clock ticks from boot to its start, field 22 of proc_pid_stat(5)."""

    pid: int
    start_ticks: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}"

    @property
    def alive(self) -> bool:
        """Whether the process runs; a zombie does not."""
        return self._state() not in ("", "Z", "X")

    @property
    def is_stopped(self) -> bool:
        """Whether a signal (Ctrl-Z, SIGSTOP) or a debugger has stopped it."""
        return self._state() in ("T", "t")

    def _state(self) -> str:
        """The letter of its state; "" if the process has ended."""
        found = _stat(self.pid)
        return found[1] if found is not None and found[0] == self.start_ticks else ""


def parse_identity(text: str) -> Identity:
    """The identity in a text that `str` of an Identity returned. Raises ValueError."""
    pid, _, ticks = text.partition(":")
    return Identity(int(pid), int(ticks))


def identify(pid: int) -> Identity | None:
    """The identity of a process, which may be a zombie; None if there is no such process."""
    found = _stat(pid)
    return Identity(pid, found[0]) if found else None


def is_running(pid: int) -> bool:
    """Whether a process has this pid and is no zombie: in a container, ended orphans may stay zombies for ever."""
    found = identify(pid)
    return found is not None and found.alive


def own_identity() -> Identity:
    identity = identify(os.getpid())
    assert identity is not None, "a running process has an entry in /proc"
    return identity


def _stat(pid: int) -> tuple[int, str] | None:
    """Start time in clock ticks since boot, and the letter of the state; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = text.rpartition(")")[2].split()  # field 2, the name, may hold spaces and parentheses
    return int(after_name[19]), after_name[0]


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock or a folder, and its host."""

    identity: Identity
    host: str

    def __str__(self) -> str:
        return f"process {self.identity.pid} on {self.host}"

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def counts(self) -> bool:
        """Whether the process is alive. A process on another host cannot be checked and counts as alive."""
        return not self.here or self.identity.alive


def own_mark() -> str:
    """The text that marks a lock or folder as held by this process."""
    return f"{own_identity()} {socket.gethostname()}\n"


def own_user() -> str:
    """USER@HOST of this process. The user is that of the system, and not of the environment."""
    import pwd  # here, because most commands name no user

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without a table of users
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def parse_holder(text: str) -> Holder:
    """The process that a mark names. Raises ValueError for any text that `own_mark` cannot write."""
    identity, host = text.split()
    return Holder(parse_identity(identity), host)


def live_holder(lock: Path) -> Holder | None:
    """The live process that holds a lock file; None if there is none.

    A process on another host is believed. The text alone proves nothing, because anyone who may write the file can name
    any process in it.
    """
    try:
        found = parse_holder(outside.read_text(lock, MARK_BYTES, lock.parent))
    except (OSError, ValueError):
        return None
    return found if found.counts and (not found.here or has_open(found.identity, lock)) else None


def has_open(identity: Identity, path: Path) -> bool:
    """Whether the process has the file open. True for a process whose files may not be listed: another user's."""
    try:
        wanted = path.stat(follow_symlinks=False)
        names = os.listdir(f"/proc/{identity.pid}/fd")
    except PermissionError:
        return identity.alive
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if os.path.samestat(os.stat(f"/proc/{identity.pid}/fd/{name}"), wanted):  # noqa: PTH116 - of many files
                return identity.alive
    return False


def signal_checked(pid: int, is_right: Callable[[], bool], *numbers: signal.Signals) -> bool:
    """Send the signals if `is_right` holds. Returns whether they were sent. Raises PermissionError.

    `is_right` is called while a pidfd holds the process. A pidfd never refers to a later process with the same pid, so
    what `is_right` finds is still true when the signals are sent.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_right():
            return False
        for number in numbers:
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def signal_identity(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to the process with this pid and this start time. Returns whether it was sent."""
    return signal_checked(identity.pid, lambda: identify(identity.pid) == identity, number)
