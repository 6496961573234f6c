"""Holds a run directory for one supervisor. Never waits: a run that is held is an error for the second comer.

The kernel drops the lock (flock) when its holder dies, by kill -9 too. The text in it says who holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.process_id import Holder, live_holder, own_mark
from prime_train.core.rundir import RunDir


class Lock:
    """A run that is held here."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._fd = _taken(run_dir)

    def keep(self) -> None:
        """Re-create the lock if someone deleted it; otherwise a second supervisor could start, and each would kill
        the other's trainer.

        Raises UserError where another process has taken the lock by then.
        """
        if _stands(self._fd, self._run_dir) or not self._run_dir.path.exists():
            return
        lost, self._fd = self._fd, _taken(self._run_dir)
        os.close(lost)

    def drop(self, made: list[Path]) -> None:
        """Let it go, and take away the folders in `made` where nothing was written into them."""
        os.ftruncate(self._fd, 0)
        if made and _stands(self._fd, self._run_dir):
            _take_away(self._run_dir, made)
        os.close(self._fd)


@contextlib.contextmanager
def held(run_dir: RunDir) -> Iterator[Lock]:
    """Hold the run, creating its directory where there is none. Raises UserError where that cannot be had.

    A directory that was made here and into which nothing has been written is taken away again.
    """
    made = [folder for folder in (run_dir.path, *run_dir.path.parents) if not folder.exists()]
    lock = Lock(run_dir)
    try:
        yield lock
    finally:
        lock.drop(made)


def holder(run_dir: RunDir) -> Holder | None:
    """The live supervisor of a run as the lock names it; None where there is none.

    Read, not locked: a reader that took the lock for a moment would turn away a `run` that starts then.
    A holder on another machine counts as alive.
    """
    return live_holder(run_dir.lock)


def unwritable(error: OSError, run_dir: RunDir) -> UserError:
    """What to tell before a trainer was started."""
    return UserError(
        what=f"the run directory cannot be written: {error.strerror}",
        where=str(run_dir.path),
        why="events, logs and checkpoints of the run are kept there",
        fix="make it writable, free some space, or choose another place with run.dir",
    )


def _taken(run_dir: RunDir) -> int:
    """The open lock file, locked, with this process's name in it."""
    while True:
        try:
            run_dir.path.mkdir(parents=True, exist_ok=True)
            fd = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(error, run_dir) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _stands(fd, run_dir):
                os.ftruncate(fd, 0)
                os.pwrite(fd, own_mark().encode(), 0)
                return fd
        except BlockingIOError:
            os.close(fd)
            raise _busy(run_dir) from None
        except OSError as error:
            os.close(fd)
            raise unwritable(error, run_dir) from None
        os.close(fd)


def _stands(fd: int, run_dir: RunDir) -> bool:
    """Whether the open file is the one at the lock's path: its holder may have taken it away before we had it."""
    try:
        return os.path.samestat(os.fstat(fd), run_dir.lock.stat())
    except FileNotFoundError:
        return False


def _take_away(run_dir: RunDir, made: list[Path]) -> None:
    with contextlib.suppress(OSError):  # something was written after all: it stays
        if os.listdir(run_dir.path) == [run_dir.lock.name]:
            run_dir.lock.unlink()
            for folder in made:
                folder.rmdir()


def _busy(run_dir: RunDir) -> UserError:
    found = holder(run_dir)
    named = str(found) if found else "another process"
    return UserError(
        what=f"the run is held by {named}",
        where=str(run_dir.lock),
        why="two supervisors would start two trainers on the same checkpoints",
        fix=f"look at it with `prime-train status {run_dir.path.name}`, or end it with "
        f"`prime-train stop {run_dir.path.name}`; another name starts another run",
    )
