"""Appends the events of one writer to its file. Reads no events of others and judges none.

The supervisor and every trainer rank have their own file, because O_APPEND is not safe for several writers on a network
file system.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from prime_train.core.outside import OutsideError, as_user_error, open_descriptor
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import make_folder, open_private, write_all
from prime_train.events.bounds import MOST_LINES, bound_numbers
from prime_train.events.record import (
    LINE_BYTES,
    TRANSIENT,
    Event,
    Record,
    as_bytes,
    encode,
    is_transient,
    read_line,
    retry,
)

_BLOCK_BYTES = 1 << 20
_ROOM_BYTES = 1 << 20  # a disk with so much room takes a line, unless a quota ends before it
_LONGEST_TEXT = 64 * 1024  # characters of a field, where the whole line would be too long
# They may quote a program.
_TEXT_FIELDS = frozenset(
    {"what", "why", "fix", "where", "reason", "detail", "failed", "traceback", "problem", "prompt", "text"}
    | {"subject", "activity", "rejected", "items", "about"}
)


def mask_secrets(event: Event, hidden: tuple[str, ...]) -> Event:
    """The event with secrets masked in its text fields. Fields for programs, such as paths and names, stay the same."""
    texts = {f.name: getattr(event, f.name) for f in fields(event) if f.name in _TEXT_FIELDS}
    changed: dict[str, Any] = {name: _mask(value, hidden) for name, value in texts.items()}
    return replace(event, **changed) if changed != texts else event


def _mask(value: object, hidden: tuple[str, ...]) -> object:
    if isinstance(value, tuple):
        return tuple(_mask(part, hidden) for part in value)
    return redact(value, hidden) if isinstance(value, str) else value  # `failed` is often a number


class EventLog:
    """Appends one writer's events.

    Thread-safe; each line is one write(2). Errors that pass by themselves are tried again. A file that was replaced
    under its name is opened again.
    """

    def __init__(self, directory: Path, writer: str) -> None:
        make_folder(directory)
        self.path = directory / f"{writer}.jsonl"
        self.life = os.urandom(4).hex()
        self._writer = writer
        self._hidden = own_secrets()
        self._lock = threading.Lock()
        try:
            self._fd = retry(self._open)
        except (OutsideError, IsADirectoryError) as error:
            raise as_user_error(error, str(self.path), f"mv {self.path} {self.path}.aside") from error
        self._seq, self._torn = retry(self._find_end)
        self._size = -1  # not known

    def append(self, event: Event) -> Record:
        """Write one event. Raises OSError if the disk does not store the whole line."""
        with self._lock:
            # Before the line is made, because a line that is on disk cannot be masked any more.
            event = bound_numbers(mask_secrets(event, self._hidden))
            record = Record(time.time(), self._writer, self._seq, event, self.life)
            line = as_bytes(encode(record)) + b"\n"
            if len(line) > LINE_BYTES:
                line = as_bytes(encode(replace(record, event=_shorten(record.event)))) + b"\n"
            retry(lambda: self._write(line), self._reopen, self._passes)
            self._seq += 1
        return record

    def _passes(self, error: OSError) -> bool:
        """Whether the next try may succeed: the error is transient, or a full disk has room again."""
        if error.errno != errno.ENOSPC:
            return is_transient(error)
        found = os.fstatvfs(self._fd)
        return found.f_bavail * found.f_frsize > _ROOM_BYTES and (found.f_files == 0 or found.f_favail > 0)

    def _write(self, line: bytes) -> None:
        if self._is_replaced():
            self._reopen()
        size = os.fstat(self._fd).st_size
        # Another writer may have left half a line: without a newline first, both lines would be lost.
        if size != self._size:  # it was cut, or another program wrote into it
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        line = b"\n" + line if self._torn else line
        self._size = -1  # not known until all of it is written
        write_all(self._fd, line)
        self._size, self._torn = size + len(line), False

    def _open(self) -> int:
        """The descriptor of the file, which is created if there is none. Raises OSError unless it is a regular file."""
        flags = os.O_RDWR | os.O_APPEND
        try:
            return open_descriptor(self.path, self.path.parent, flags)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process has made it in between
                return open_private(self.path, flags | os.O_CREAT | os.O_EXCL)
            return open_descriptor(self.path, self.path.parent, flags)

    def _is_replaced(self) -> bool:
        """Another file has the name: an editor or a copy replaced it."""
        try:
            named = self.path.lstat()
        except OSError:
            return False  # deleted; the supervisor notices that it cannot read its events back
        # Inode and device together: an inode number alone is used again on another disk.
        own = os.fstat(self._fd)
        return (named.st_ino, named.st_dev) != (own.st_ino, own.st_dev)

    def _reopen(self, error: OSError | None = None) -> None:
        """Open the file again, because its handle is stale or its name belongs to another file."""
        if error is not None and error.errno != errno.ESTALE:
            return
        try:
            fd = self._open()
        except OSError as failed:
            if failed.errno in TRANSIENT:
                return  # the next try comes here again
            raise
        self._fd, before = fd, self._fd
        self._size = -1
        os.close(before)

    def _find_end(self) -> tuple[int, bool]:
        """The next position, and whether the last line has no newline.

        Positions count lines, so a reader notices lines that are missing. They also exceed every position that was
        written, because the lines before may have been deleted; the last record proves one.
        """
        newlines, size, tail = 0, 0, b"\n"
        while block := os.pread(self._fd, _BLOCK_BYTES, size):
            newlines, size, tail = newlines + block.count(b"\n"), size + len(block), (tail + block)[-2 * LINE_BYTES :]
        is_torn = not tail.endswith(b"\n")
        proved = -1
        for line in reversed(tail.split(b"\n")):
            record = read_line(line).record
            # A position near the limit is forged, and leaves none for the events of a run.
            if record is not None and record.writer == self._writer and record.seq <= MOST_LINES // 2:
                proved = record.seq
                break
        return max(newlines + is_torn, proved + 1), is_torn

    def close(self) -> None:
        os.close(self._fd)


def _shorten(event: Event) -> Event:
    long: dict[str, Any] = {}
    for f in fields(event):
        value = getattr(event, f.name)
        if isinstance(value, str) and len(value) > _LONGEST_TEXT:
            long[f.name] = f"{value[:_LONGEST_TEXT]}..."
        elif isinstance(value, tuple):
            long[f.name] = tuple(str(item)[:1000] for item in value[:100])
    return replace(event, **long)
