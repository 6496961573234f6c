"""Follows every log of an attempt while it grows, and knows at any moment what they say together. Reads only."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.diagnose.cause import Cause, Diagnosis, judge
from prime_train.diagnose.log_scanner import Scanner
from prime_train.diagnose.scan_result import Hit, WriteWindow
from prime_train.events import LogNoticed

_PIECE_BYTES = 128 * 1024  # read at a time, so that one log's flood does not hide the others
_CALM_BYTES = 4 * 1024 * 1024  # behind by more, a log is read in a hurry
_HURRIED_LOOKS = 100  # lines of a piece that are then looked at closely
_MOST_BEHIND_BYTES = 256 * 1024 * 1024  # behind by more, it is not read at all up to the last _CALM_BYTES
_LOOK_FOR_LOGS_S = 2.0
_MOST_LOGS = 256
_ENDINGS = (".log", ".out", ".err", ".stdout", ".stderr")  # torchrun's --log-dir has stdout.log, older ones stdout
_NAMES = frozenset({"stdout", "stderr"})
_NOT_ENTERED = frozenset({"checkpoints", "weights", "broadcasts", "rollouts", "wandb"})


class Notice(NamedTuple):
    """Something worth telling while the run goes on: a signature, or SKIPPED or UNREAD for what the listener missed."""

    signature: str
    what: str
    file: str
    line: int  # 0 = of no line


class Listener:
    """The logs of one attempt.

    `logs` are read from their beginning, and may not exist yet; in `folders` every log is followed that appears
    there, and of one that has been there before what is added to it.
    """

    def __init__(self, logs: Sequence[Path] = (), folders: Sequence[Path] = ()) -> None:
        self._logs: dict[Path, _Log] = {}
        self._folders = tuple(folders)
        self._told: set[str] = set()
        self._looked_s = float("-inf")
        self.add(*logs)
        before = [path for path in self._found() if path not in self._logs]
        for path in before[:_MOST_LOGS]:
            self._logs[path] = _Log(path, from_its_end=True)

    def add(self, *logs: Path) -> None:
        """Follow these too, from their beginning."""
        for path in logs:
            if path not in self._logs and len(self._logs) < _MOST_LOGS:
                self._logs[path] = _Log(path, is_old=path.exists())

    def _appeared(self) -> None:
        for path in self._found():
            if path not in self._logs and len(self._logs) < _MOST_LOGS:
                self._logs[path] = _Log(path)

    def poll(self, budget_s: float = 0.5) -> tuple[Notice, ...]:
        """Read what is new, for `budget_s` at most (and one piece of 128 KiB more); what is worth telling, each kind
        once. What is left over is read the next time."""
        self._look_for_logs()
        self._read(budget_s)
        fresh = [notice for notice in self._notices() if notice.signature not in self._told]
        told = {notice.signature: notice for notice in reversed(fresh)}
        self._told |= told.keys()
        return tuple(reversed(told.values()))

    def diagnosis(self) -> Diagnosis:
        """What the logs say up to here."""
        return judge([log.scanner.so_far(log.changed_s) for log in self._logs.values() if log.changed_s is not None])

    def cause(self, budget_s: float = 5.0) -> Cause | None:
        """The root cause once nothing writes any more: reads the rest, for `budget_s` at most, then the ends alone."""
        self._look_for_logs(at_once=True)
        self._read(budget_s)
        for log in self._logs.values():
            log.read_end()
        return self.diagnosis().cause

    @property
    def unread(self) -> tuple[UserError, ...]:
        """What cannot be read, and why."""
        return tuple(log.problem for log in self._logs.values() if log.problem is not None)

    def _read(self, budget_s: float) -> None:
        until_s = time.monotonic() + budget_s
        waiting = list(self._logs.values())
        while waiting and time.monotonic() < until_s:
            waiting = [log for log in waiting if log.read()]

    def _look_for_logs(self, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if at_once or now_s - self._looked_s >= _LOOK_FOR_LOGS_S:
            self._looked_s = now_s
            self._appeared()

    def _found(self) -> Iterator[Path]:
        for folder in self._folders:
            for root, folders, files in os.walk(folder):
                folders[:] = sorted(name for name in folders if name not in _NOT_ENTERED and not name.startswith("."))
                yield from (Path(root, name) for name in sorted(files) if name.endswith(_ENDINGS) or name in _NAMES)

    def _notices(self) -> Iterator[Notice]:
        for log in self._logs.values():
            yield from (_noticed(hit, log.path) for hit in log.scanner.find_notices())
            if log.problem is not None:
                yield Notice("UNREAD", log.problem.what, str(log.path), 0)
            if log.skipped_bytes or log.scanner.skipped:
                what = f"{log.scanner.skipped:,} lines and {log.skipped_bytes:,} bytes came too fast to be looked at"
                yield Notice("SKIPPED", what, str(log.path), 0)


def _noticed(hit: Hit, path: Path) -> Notice:
    assert hit.match is not None
    return Notice(hit.match.signature.id, hit.match.fill(hit.match.signature.what), str(path), hit.at)


class _Log:
    """One file, how far it was read, and what was found in it."""

    def __init__(self, path: Path, *, is_old: bool = False, from_its_end: bool = False) -> None:
        self.path = path
        self.scanner = Scanner(str(path))
        self.changed_s: float | None = None  # None until any of it was read
        self.problem: UserError | None = None
        self.skipped_bytes = 0
        self._offset = 0
        self._inode = 0
        self._seen_s = -math.inf if is_old else time.time()  # when there was nothing in it that had not been read
        if from_its_end:
            self._skip_to_end()

    def read(self) -> bool:
        """Read one piece; whether there is more."""
        try:
            behind = self._behind()
            if behind <= 0:
                self._seen_s = time.time()
                return False
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_PIECE_BYTES)
        except FileNotFoundError:
            return False  # not begun, or already tidied away
        except OSError as error:
            self.problem = _unreadable(self.path, error)
            return False
        self.problem = None
        self._offset += len(data)
        more = behind > len(data)
        self.scanner.feed(data, None if behind <= _CALM_BYTES else _HURRIED_LOOKS, self._heard(is_last=not more))
        return more

    def read_end(self) -> None:
        """Read what is left, of a lot of it only the end, and take the last line as whole."""
        try:
            self._skip(self._behind(), _CALM_BYTES)
        except OSError:
            return  # told by the reading before
        while self.read():
            pass
        self.scanner.finish()

    def _heard(self, *, is_last: bool) -> WriteWindow:
        """When what was just read was written. The file's own time is nearer, unless its clock is another one."""
        now_s = time.time()
        changed_s = self.changed_s if is_last and self.changed_s is not None else now_s
        heard = WriteWindow(self._seen_s, changed_s if self._seen_s <= changed_s <= now_s else now_s)
        if is_last:
            self._seen_s = now_s
        return heard

    def _behind(self) -> int:
        """Bytes that were not read yet. A file that was replaced or cut begins anew."""
        status = self.path.stat()
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._offset, self._inode = 0, status.st_ino
        if status.st_size > self._offset:
            self.changed_s = status.st_mtime
        behind = status.st_size - self._offset
        return self._skip(behind, _CALM_BYTES) if behind > _MOST_BEHIND_BYTES else behind

    def _skip(self, behind: int, left: int) -> int:
        """Leave out all but the last `left` bytes; what is left."""
        if behind <= left:
            return behind
        self.skipped_bytes += behind - left
        self._offset += behind - left
        self.scanner.feed(b"\n")
        return left

    def _skip_to_end(self) -> None:
        try:
            status = self.path.stat()
        except OSError:
            return
        self._offset, self._inode = status.st_size, status.st_ino


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        what=f"the log cannot be read: {error.strerror}",
        where=str(path),
        why="what stands in it cannot explain an end of the run",
        fix=f"check its rights and the disk: ls -l {path}",
    )


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
