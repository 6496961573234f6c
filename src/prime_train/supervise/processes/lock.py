"""Locks a run directory for one supervisor. It never waits: a run that is locked already is an error.

The kernel releases the lock (flock) when its holder dies, after kill -9 too. Its text names the holder. A directory
whose folders are no folders of the run is refused: links out of it, files, links to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from prime_train.checkpoints import in_use
from prime_train.core.errors import UserError, explain_disk_error
from prime_train.core.process_id import Holder, live_holder, own_mark
from prime_train.core.rundir import RunDir, make_folder, remove_temporary, write_all

_ATTEMPTS_DEPTH = 2  # attempts/NNN/evidence


class Lock:
    """The lock of a run that this process holds."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._fd = _acquire(run_dir)

    def keep(self) -> None:
        """Re-create a lock file that was deleted. Raises UserError if another process holds the lock by now.

        Without it a second supervisor could start and each would kill the other's trainer.
        """
        if _is_current(self._fd, self._run_dir) or not self._run_dir.path.exists():
            return
        # The new lock first: between two locks another supervisor could start.
        lost, self._fd = self._fd, _acquire(self._run_dir)
        os.close(lost)

    def drop(self, made: list[Path]) -> None:
        """Release the lock, and remove the folders in `made` if nothing was written into them."""
        # Emptied before it is released, because its text must not name a holder that holds nothing.
        os.ftruncate(self._fd, 0)
        if made and _is_current(self._fd, self._run_dir):
            _remove_empty(self._run_dir, made)
        os.close(self._fd)


@contextlib.contextmanager
def hold_run(run_dir: RunDir) -> Iterator[Lock]:
    """Hold the lock of a run, and create the run directory if it does not exist. Raises UserError.

    Temporary files and marks of processes that were killed are removed at the beginning and at the end. A directory
    that was created here and stayed empty is removed at the end.
    """
    made = [folder for folder in (run_dir.path, *run_dir.path.parents) if not folder.exists()]
    lock = Lock(run_dir)
    try:
        _clear(run_dir)  # of killed supervisors
        yield lock
    finally:
        _clear(run_dir)  # of killed trainers and packing programs
        lock.drop(made)


def _clear(run_dir: RunDir) -> None:
    remove_temporary(run_dir)
    in_use.remove_dead(run_dir.checkpoints)


def find_holder(run_dir: RunDir) -> Holder | None:
    """The live supervisor of a run; None without one.

    A holder on another machine counts as alive. The lock file is only read: a reader that locked it, even briefly,
    would make a `run` that starts then fail.
    """
    return live_holder(run_dir.lock)


def refuse_held(run_dir: RunDir) -> None:
    """Raise UserError if a supervisor of the run is alive."""
    if find_holder(run_dir) is not None:
        raise _busy(run_dir)


def unwritable_error(error: OSError, run_dir: RunDir) -> UserError:
    """The error before a trainer is started."""
    found = explain_disk_error(error.errno or 0, run_dir.path)
    what = f"the run directory cannot be written: {error.strerror}: {found.what}"
    why = f"{found.why}; events, logs and checkpoints of the run are kept there"
    return UserError(what, str(run_dir.path), why, f"{found.fix}; or choose another place with run.dir")


def _acquire(run_dir: RunDir) -> int:
    """Open and lock the lock file, and write this process's identity into it. Returns its descriptor."""
    while True:
        try:
            run_dir.path.parent.mkdir(parents=True, exist_ok=True)
            make_folder(run_dir.path)
            _refuse_other_kinds(run_dir)
            check_folders(run_dir)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            # O_NOFOLLOW and O_NONBLOCK, because another program may put a link or a pipe there after the check.
            fd = os.open(run_dir.lock, flags, 0o644)
        except OSError as error:
            raise unwritable_error(error, run_dir) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have deleted the file after this process opened it: then the lock is of no file.
            if _is_current(fd, run_dir):
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
                write_all(fd, own_mark().encode())
                return fd
        except BlockingIOError:
            os.close(fd)
            raise _busy(run_dir) from None
        except OSError as error:
            os.close(fd)
            raise unwritable_error(error, run_dir) from None
        os.close(fd)


def _refuse_other_kinds(run_dir: RunDir) -> None:
    """Raise UserError if the lock is a link, a pipe or a device: its text would be written somewhere else."""
    try:
        mode = run_dir.lock.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
        why = "prime-train writes the lock, and a link or a device leads to something else"
        fix = f"look at it with `ls -l {run_dir.lock}`, and remove it if no run uses it"
        raise UserError(f"the lock is {kind}", str(run_dir.lock), why, fix)


def _is_current(fd: int, run_dir: RunDir) -> bool:
    """Whether the open file is still the one at the lock's path, because its last holder may have deleted it."""
    try:
        return os.path.samestat(os.fstat(fd), run_dir.lock.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove_empty(run_dir: RunDir, made: list[Path]) -> None:
    with contextlib.suppress(OSError):  # something was written meanwhile, so the folder stays
        if os.listdir(run_dir.path) == [run_dir.lock.name]:
            run_dir.lock.unlink()
            for folder in made:
                folder.rmdir()


def _busy(run_dir: RunDir) -> UserError:
    found = find_holder(run_dir)
    named = str(found) if found else "another process"
    return UserError(
        what=f"the run is held by {named}",
        where=str(run_dir.lock),
        why="two supervisors would start two trainers on the same checkpoints",
        fix=f"look at it with `prime-train status {run_dir.path.name}`, or end it with "
        f"`prime-train stop {run_dir.path.name}`; another name starts another run",
    )


@contextlib.contextmanager
def hold_idle_run(run_dir: RunDir) -> Iterator[None]:
    """Hold the run's lock, so that no trainer uses its checkpoints. Raises UserError if the run is live."""
    if found := find_holder(run_dir):
        what = f"the run is held by process {found.identity.pid} on {found.host}"
        fix = f"wait for its end, or `prime-train stop {run_dir.path.name}`"
        raise UserError(what, str(run_dir.lock), "its trainer writes, deletes and loads these checkpoints", fix)
    with hold_run(run_dir):
        yield


def check_folders(run_dir: RunDir) -> None:
    """Raise UserError if a folder that the run writes is a symbolic link out of the run directory, or no folder.

    The directory itself may be reached by links. The folders of checkpoints have rules of their own, and so has
    what other programs keep deeper in the directory.
    """
    for needed in (run_dir.events, run_dir.attempt(0).parent, run_dir.checkpoints):
        if os.path.lexists(needed) and not needed.is_dir():
            why = "the run keeps its events, logs or checkpoints in this folder, so it could not go on"
            fix = f"mv {shlex.quote(str(needed))} {shlex.quote(f'{needed}.aside')}"
            raise UserError("it is not a folder", str(needed), why, fix)
    root = os.path.realpath(run_dir.path)
    for link in (*_links(root), *_links(os.path.join(root, "attempts"), _ATTEMPTS_DEPTH)):  # noqa: PTH118 - strings
        target = os.path.realpath(link)
        if os.path.isdir(target) and os.path.commonpath([root, target]) != root:  # noqa: PTH112
            raise _leads_out(Path(link), Path(target))


def _links(folder: str, depth: int = 1) -> Iterator[str]:
    """The symbolic links in a folder, down to `depth` folders. Follows none; what cannot be read has none."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _links(entry.path, depth - 1)


def _leads_out(link: Path, target: Path) -> UserError:
    here, there = shlex.quote(str(link)), shlex.quote(str(target))
    why = "the run would write there, and delete there what it takes for its own"
    fix = f"rm {here} if it is not yours; else rm {here} && mv {there} {here}, or choose the other disk with run.dir"
    return UserError(f"it is a symbolic link to {target}, outside the run directory", str(link), why, fix)
