"""Follows all logs of an attempt while they grow, and diagnoses them together. Reads only."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.rundir import append_traceback
from prime_train.diagnose.cause import Cause, Diagnosis, judge
from prime_train.diagnose.hits import Hit, WriteWindow
from prime_train.diagnose.log_scanner import Scanner
from prime_train.events import LogNoticed

_PIECE_BYTES = 128 * 1024  # read at a time, so that a fast log does not hold up the others
_CALM_BYTES = 4 * 1024 * 1024  # with more unread bytes than this, a log is scanned fast
_FAST_SCAN_LINES = 100  # lines of a piece that a fast scan checks closely
_MOST_BEHIND_BYTES = 256 * 1024 * 1024  # with more unread bytes than this, only the last _CALM_BYTES are read
_FIND_LOGS_S = 2.0
_EVERY_S = 1.0
_MOST_LOGS = 256
_ENDINGS = (".log", ".out", ".err", ".stdout", ".stderr")  # torchrun's --log-dir has stdout.log, older ones stdout
_NAMES = frozenset({"stdout", "stderr"})
_NOT_ENTERED = frozenset({"checkpoints", "weights", "broadcasts", "rollouts", "wandb"})


class LogNotice(NamedTuple):
    """A finding during the run: a signature, or SKIPPED or UNREAD for log text that was not read."""

    signature: str
    what: str
    file: str
    line: int  # 0 = no line


class LogReader:
    """Reads the logs of one attempt.

    `logs` are read from their beginning, and may not exist yet. In `folders`, new logs are read from their beginning,
    and existing logs from their present end.
    """

    def __init__(self, logs: Sequence[Path] = (), folders: Sequence[Path] = ()) -> None:
        self._logs: dict[Path, _Log] = {}
        self._folders = tuple(folders)
        self._reported: set[str] = set()
        self._searched_s = float("-inf")
        for path in logs:
            self._logs[path] = _Log(path, is_old=path.exists())
        before = [path for path in self._find_files() if path not in self._logs]
        for path in before[:_MOST_LOGS]:
            self._logs[path] = _Log(path, from_its_end=True)

    def poll(self, budget_s: float = 0.5) -> tuple[LogNotice, ...]:
        """Read new text for about `budget_s`, the rest at the next call. Returns new notices, each signature once."""
        self._find_new_logs()
        self._read(budget_s)
        fresh = [notice for notice in self._notices() if notice.signature not in self._reported]
        first = {notice.signature: notice for notice in reversed(fresh)}
        self._reported |= first.keys()
        return tuple(reversed(first.values()))

    def diagnosis(self) -> Diagnosis:
        return judge([log.scanner.so_far(log.changed_s) for log in self._logs.values() if log.changed_s is not None])

    def cause(self, budget_s: float = 5.0) -> Cause | None:
        """The root cause after all writers have ended. Reads the rest for `budget_s`, then only the ends."""
        self._find_new_logs(at_once=True)
        self._read(budget_s)
        for log in self._logs.values():
            log.read_end()
        return self.diagnosis().cause

    @property
    def unread(self) -> tuple[UserError, ...]:
        return tuple(log.problem for log in self._logs.values() if log.problem is not None)

    def _read(self, budget_s: float) -> None:
        until_s = time.monotonic() + budget_s
        waiting = list(self._logs.values())
        while waiting and time.monotonic() < until_s:
            waiting = [log for log in waiting if log.read()]

    def _find_new_logs(self, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if not at_once and now_s - self._searched_s < _FIND_LOGS_S:
            return
        self._searched_s = now_s
        for path in self._find_files():
            if path not in self._logs and len(self._logs) < _MOST_LOGS:
                self._logs[path] = _Log(path)

    def _find_files(self) -> Iterator[Path]:
        for folder in self._folders:
            for root, folders, files in os.walk(folder):
                folders[:] = sorted(name for name in folders if name not in _NOT_ENTERED and not name.startswith("."))
                yield from (Path(root, name) for name in sorted(files) if name.endswith(_ENDINGS) or name in _NAMES)

    def _notices(self) -> Iterator[LogNotice]:
        for log in self._logs.values():
            yield from (_notice(hit, log.path) for hit in log.scanner.find_notices())
            if log.problem is not None:
                yield LogNotice("UNREAD", log.problem.what, str(log.path), 0)
            if log.skipped_bytes or log.scanner.skipped:
                what = f"{log.scanner.skipped:,} lines and {log.skipped_bytes:,} bytes came too fast to be checked"
                yield LogNotice("SKIPPED", what, str(log.path), 0)


def _notice(hit: Hit, path: Path) -> LogNotice:
    assert hit.match is not None
    return LogNotice(hit.match.signature.id, hit.match.fill(hit.match.signature.what), str(path), hit.at)


class _Log:
    """One file, its read position and its scanner."""

    def __init__(self, path: Path, *, is_old: bool = False, from_its_end: bool = False) -> None:
        self.path = path
        self.scanner = Scanner(str(path))
        self.changed_s: float | None = None  # None until any of it was read
        self.problem: UserError | None = None
        self.skipped_bytes = 0
        self._offset = 0
        self._inode = 0
        self._seen_s = -math.inf if is_old else time.time()  # when all of it was last read
        if from_its_end:
            with contextlib.suppress(OSError):
                status = path.stat()
                self._offset, self._inode = status.st_size, status.st_ino

    def read(self) -> bool:
        """Read one piece. Returns whether there is more."""
        try:
            behind = self._count_unread()
            if behind <= 0:
                self._seen_s = time.time()
                return False
            with outside.open_regular(self.path) as file:
                file.seek(self._offset)
                data = file.read(_PIECE_BYTES)
        except FileNotFoundError:
            return False  # not created yet, or deleted already
        except OSError as error:
            self.problem = _unreadable_error(self.path, error)
            return False
        self.problem = None
        self._offset += len(data)
        more = behind > len(data)
        lines = None if behind <= _CALM_BYTES else _FAST_SCAN_LINES
        self.scanner.feed(data, lines, self._write_window(is_last=not more))
        return more

    def read_end(self) -> None:
        """Read the rest, at most its last _CALM_BYTES, and treat the last line as complete."""
        try:
            self._skip(self._count_unread(), _CALM_BYTES)
        except OSError:
            return  # `read` has set the problem
        while self.read():
            pass
        self.scanner.finish()

    def _write_window(self, *, is_last: bool) -> WriteWindow:
        """When the text that was just read was written. The file's time is more exact, if its clock is this one."""
        now_s = time.time()
        changed_s = self.changed_s if is_last and self.changed_s is not None else now_s
        window = WriteWindow(self._seen_s, changed_s if self._seen_s <= changed_s <= now_s else now_s)
        if is_last:
            self._seen_s = now_s
        return window

    def _count_unread(self) -> int:
        """Bytes that are not read yet. A file that was replaced or truncated is read from its beginning."""
        status = self.path.stat()
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._offset, self._inode = 0, status.st_ino
        if status.st_size > self._offset:
            self.changed_s = status.st_mtime
        behind = status.st_size - self._offset
        return self._skip(behind, _CALM_BYTES) if behind > _MOST_BEHIND_BYTES else behind

    def _skip(self, behind: int, left: int) -> int:
        """Skip all but the last `left` bytes. Returns the bytes that remain."""
        if behind <= left:
            return behind
        self.skipped_bytes += behind - left
        self._offset += behind - left
        self.scanner.feed(b"\n")
        return left


def _unreadable_error(path: Path, error: OSError) -> UserError:
    why = "its text cannot explain an end of the run"
    fix = f"check its permissions and the disk: ls -l {path}"
    return UserError(f"the log cannot be read: {error.strerror}", str(path), why, fix)


class LogFollower:
    """A LogReader in its own thread, so that many lines or a dead file system hold up only that thread."""

    def __init__(
        self, logs: Sequence[Path], folders: Sequence[Path], attempt: int, inbox: SimpleQueue[object], own_log: Path
    ) -> None:
        self._reader = LogReader(logs, folders)
        self._own_log = own_log
        self._attempt = attempt
        self._inbox = inbox
        self._ended = threading.Event()
        self._lock = threading.Lock()  # held while the reader works
        self._cause: Cause | None = None
        self._thread = threading.Thread(target=self._follow, name=f"logs-{attempt}", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._ended.wait(_EVERY_S):
            try:
                with self._lock:
                    notices = self._reader.poll()
            except Exception as error:  # every kind, because a strange line must not end this thread silently
                self._inbox.put(LogNoticed(self._attempt, "UNREAD", self._report(error), str(self._own_log), 0))
                return
            for notice in notices:
                self._inbox.put(LogNoticed(self._attempt, *notice))

    def cause(self) -> Cause | None:
        """The root cause in all that is written by now; None if a log does not answer or the search fails.

        Later calls return the same. The first is made after all writers have ended, or before they are killed.
        """
        if not self._ended.is_set():
            self._ended.set()
            self._cause = self._find_cause()
        return self._cause

    def _find_cause(self) -> Cause | None:
        if not self._lock.acquire(timeout=10.0):  # a read hangs, because a network file system is gone
            return None
        try:
            return self._reader.cause()
        except Exception as error:  # as above; the end is judged without the logs
            self._report(error)
            return None
        finally:
            self._lock.release()

    def _report(self, error: Exception) -> str:
        append_traceback(self._own_log, error)
        return f"the logs are no longer followed: {type(error).__name__}: {error}; please report the traceback"

    def end(self) -> None:
        self._ended.set()
