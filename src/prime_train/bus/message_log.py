"""An append-only log of messages in a folder, for several processes of this machine. Knows no subject.

A log is a row of files. Each line is a JSON object with its number, so a reader notices what it missed. A writer holds
the lock of the folder, and cuts off a line that a killed writer left half-written. A reader takes whole lines, and
costs two stats without news.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.bus.base import MESSAGE_BYTES, BusRefused
from prime_train.core.outside import MARK_BYTES, open_regular, parse_json, read_json
from prime_train.core.rundir import make_folder, open_private, write_all, write_atomic

FILE_BYTES = 4 * 2**20
LOG_BYTES = 64 * 2**20
_LINE_BYTES = 2 * MESSAGE_BYTES
_MOST_IDS = 100_000
_SUFFIX = ".jsonl"


class MessagePlace(NamedTuple):
    """A place in a log: the number of a file, a byte in it, and the number of the next line; -1 = not known."""

    file: int = 0
    offset: int = 0
    line: int = -1


class MessageLine(NamedTuple):
    """`missing`: lines before it that were deleted unread."""

    subject: str
    id: str
    reply: str
    body: Mapping[str, Any]
    missing: int


class MessageLog:
    """`keeps`: nothing is deleted before every cursor has passed it, and a full log refuses; else the oldest goes."""

    def __init__(self, folder: Path, *, keeps: bool, most_bytes: int = LOG_BYTES) -> None:
        self._folder = folder
        self._keeps = keeps
        self._most_bytes = most_bytes
        self._file_bytes = min(FILE_BYTES, max(1, most_bytes // 4))
        make_folder(folder)
        make_folder(self._cursors)
        self._written = MessageReader(folder, MessagePlace())
        self._ids: OrderedDict[str, None] = OrderedDict()

    @property
    def _cursors(self) -> Path:
        return self._folder / "cursors"

    def append(self, subject: str, message_id: str, reply: str, body: Mapping[str, Any]) -> None:
        """Adds a message; a kept one is on the disk when this returns, and is left out if its id is there already.

        Raises BusRefused where the log is full, and OSError.
        """
        with lock(self._folder / "lock"):
            self._read_own()
            if self._keeps and message_id in self._ids:
                return
            file, size, number = self._written.place
            if file == 0 or size >= self._file_bytes:
                file, size = file + 1, 0
            content = {"n": max(0, number), "s": subject, "id": message_id, "r": reply, "b": dict(body)}
            line = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            self._make_room(len(line))
            self._write(self._path(file), line, size)

    def _read_own(self) -> None:
        """Learn from the lines since the last call, of all writers, which ids and how many lines there are."""
        for line in self._written.read():
            if self._keeps:
                self._ids[line.id] = None
                if len(self._ids) > _MOST_IDS:
                    self._ids.popitem(last=False)

    def _write(self, path: Path, line: bytes, size: int) -> None:
        """Writes a line behind the first `size` bytes. What follows them is the half line of a killed writer."""
        descriptor = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            os.ftruncate(descriptor, size)
            try:
                write_all(descriptor, line)
                if self._keeps:
                    os.fdatasync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)  # a full disk took a part of it
                raise
        finally:
            os.close(descriptor)

    def _make_room(self, more_bytes: int) -> None:
        sizes = {number: _size(self._path(number)) for number in _list_numbers(self._folder)}
        excess_bytes = sum(sizes.values()) + more_bytes - self._most_bytes
        *older, _ = sizes or [0]
        passed = min((place.file for place in self._list_cursors()), default=0)
        for number in older:
            if number < passed if self._keeps else excess_bytes > 0:
                self._path(number).unlink(missing_ok=True)
                excess_bytes -= sizes[number]
        if excess_bytes > 0 and self._keeps:
            raise BusRefused(f"the store is full: {self._most_bytes} bytes that no reader has acknowledged")

    def _list_cursors(self) -> list[MessagePlace]:
        return [place for path in self._cursors.iterdir() if (place := _read_place(path)) is not None]

    def reader_at_end(self) -> MessageReader:
        """A reader of what is appended from here on."""
        with lock(self._folder / "lock"):
            self._read_own()
            place = self._written.place
            # The first line of an empty log has a number, by which a reader that comes late knows what was deleted.
            return MessageReader(self._folder, place if place.file else MessagePlace(line=0))

    def reader_of(self, name: str) -> MessageReader:
        """A reader of everything after the cursor of this name."""
        place = _read_place(self._cursors / f"{name}.json")
        return MessageReader(self._folder, place or MessagePlace())

    def set_cursor(self, name: str, place: MessagePlace) -> None:
        write_atomic(self._cursors / f"{name}.json", json.dumps(place))

    def _path(self, number: int) -> Path:
        return _path(self._folder, number)


class MessageReader:
    """Reads the lines of a log from a place on."""

    def __init__(self, folder: Path, place: MessagePlace) -> None:
        self._folder = folder
        self.place = place
        self.rejected = 0

    def read(self) -> Iterator[MessageLine]:
        """The complete lines since the last call."""
        while True:
            path = _path(self._folder, self.place.file)
            # Looked for first: a writer begins another file only after the last line of this one.
            later = self._find_later()
            if _size(path) > self.place.offset:
                yield from self._read_file(path)
            if later is None:
                return
            self.place = MessagePlace(later, 0, self.place.line)

    def _find_later(self) -> int | None:
        following = self.place.file + 1
        if self.place.file and _path(self._folder, following).exists():
            return following
        if self.place.file and _path(self._folder, self.place.file).exists():
            return None
        return next((number for number in _list_numbers(self._folder) if number > self.place.file), None)

    def _read_file(self, path: Path) -> Iterator[MessageLine]:
        with (
            contextlib.suppress(FileNotFoundError),
            open_regular(path) as file,
        ):  # deleted: the number of the next line shows how many
            file.seek(self.place.offset)
            while (content := file.readline(_LINE_BYTES)).endswith(b"\n"):
                found = self._parse(content)
                if found is not None:
                    yield found

    def _parse(self, content: bytes) -> MessageLine | None:
        number, offset, expected = self.place
        offset += len(content)
        try:
            raw = parse_json(content)
            line, body = int(raw["n"]), raw["b"]
            texts = (raw["s"], raw["id"], raw["r"])
            if not all(isinstance(text, str) for text in texts) or not isinstance(body, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            self.rejected += 1
            self.place = MessagePlace(number, offset, expected)
            return None
        self.place = MessagePlace(number, offset, line + 1)
        return MessageLine(*texts, body, line - expected if 0 <= expected < line else 0)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Holds a lock of this machine. The kernel frees it with its process."""
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def report_disk() -> Iterator[None]:
    """A disk that takes no more is a refusal: the caller still has its message."""
    try:
        yield
    except OSError as error:
        raise BusRefused(f"the folder of the bus takes no more: {error.strerror}") from error


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}{_SUFFIX}"


def _list_numbers(folder: Path) -> list[int]:
    names = (entry.name.removesuffix(_SUFFIX) for entry in os.scandir(folder) if entry.name.endswith(_SUFFIX))
    return sorted(int(name) for name in names if name.isdecimal())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_place(path: Path) -> MessagePlace | None:
    try:
        found = read_json(path, MARK_BYTES)
    except (OSError, ValueError):
        return None
    is_place = isinstance(found, list) and len(found) == 3 and all(type(part) is int and part >= -1 for part in found)
    return MessagePlace(*found) if is_place else None
