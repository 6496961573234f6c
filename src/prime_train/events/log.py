"""Writes events as lines to one append-only file per writer, and reads them merged. Judges none of them.

The supervisor and every trainer rank have their own file, because O_APPEND is not safe for several writers on a network
file system. Readers merge by time, writer and sequence number. They read a torn last line later, when it is complete.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, get_args

from prime_train.core.errors import UserError
from prime_train.core.own_secrets import own_secrets
from prime_train.core.redaction import redact
from prime_train.core.rundir import make_folder, open_private
from prime_train.events.schema import Event, Progress, Unrecognised

VERSION = 1
_BLOCK_BYTES = 1 << 20
_PROGRESS = f'"kind":"{Progress.kind}"'.encode()
# They may quote a program.
_TEXT_FIELDS = frozenset(
    {"what", "why", "fix", "where", "reason", "detail", "failed", "traceback", "problem", "prompt", "text"}
    | {"subject", "activity", "rejected", "items", "about"}
)
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event) if cls is not Unrecognised}


@dataclass(frozen=True, slots=True)
class Record:
    """One event with its envelope. `time_s` is the Unix time on the writer's machine, in seconds."""

    time_s: float
    writer: str
    seq: int
    event: Event

    @property
    def order(self) -> tuple[float, str, int]:
        return (self.time_s, self.writer, self.seq)


def encode(record: Record) -> str:
    """One JSON line, without the newline."""
    envelope = {
        "v": VERSION,
        "t": round(record.time_s, 6),
        "w": record.writer,
        "n": record.seq,
        "kind": record.event.kind,
    }
    return json.dumps(envelope | asdict(record.event), ensure_ascii=False, allow_nan=True, separators=(",", ":"))


def decode(line: str) -> Record | None:
    """The record of one line; None if the line is not a record, such as one torn by a crash."""
    try:
        raw = json.loads(line)
        cls = _KINDS.get(raw["kind"])
        if cls is None:
            event: Event = Unrecognised(name=str(raw["kind"]))
        else:
            known = {f.name for f in fields(cls)}
            event = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in known})
        return Record(float(raw["t"]), str(raw["w"]), int(raw["n"]), event)
    except (ValueError, KeyError, TypeError):
        return None


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
    """Appends one writer's events. Thread-safe; each line is one write(2)."""

    def __init__(self, directory: Path, writer: str) -> None:
        make_folder(directory)
        self.path = directory / f"{writer}.jsonl"
        self._writer = writer
        self._hidden = own_secrets()
        self._lock = threading.Lock()
        self._fd = open_private(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        newlines, last = 0, b"\n"
        with open(self.path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                newlines, last = newlines + block.count(b"\n"), block[-1:]
        self._torn = last != b"\n"  # a crash or a full disk tore the last line
        self._seq = newlines + self._torn  # a line without its newline has used its number

    def append(self, event: Event) -> Record:
        """Write one event. Raises OSError if the disk does not store the whole line."""
        with self._lock:
            record = Record(time.time(), self._writer, self._seq, mask_secrets(event, self._hidden))
            # A lone surrogate (from a file name that is not UTF-8) becomes a JSON escape.
            line = encode(record).encode(errors="backslashreplace") + b"\n"
            line = b"\n" + line if self._torn else line
            self._torn = os.write(self._fd, line) < len(line)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._seq += 1
        return record

    def close(self) -> None:
        os.close(self._fd)


class Follower:
    """Reads the events of a run directory while they are written: each `poll` returns the new ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[str, int] = {}

    def poll(self) -> list[Record]:
        """The new records, merged by time. Each writer's records keep their order, even if its clock was set back.

        Costs one stat per file without new records. The first read of a file above a megabyte returns only the first
        and the last of consecutive Progress events: those between do not change the state, and are most of the file.
        Later reads return every event, because the step time is computed from them.
        Raises UserError without permission to read.
        """
        by_writer: list[list[Record]] = []
        try:
            entries = os.scandir(self._directory)
            by_writer.extend(self._read_new(entry) for entry in entries if entry.name.endswith(".jsonl"))
        except FileNotFoundError:  # the run was deleted during the scan
            pass
        except PermissionError as error:
            raise UserError(
                what="the events of the run may not be read: permission denied",
                where=str(error.filename or self._directory),
                why="they belong to another user, or their permissions were changed",
                fix=f"ls -ld {self._directory}; then chown or chmod it",
            ) from error
        return list(heapq.merge(*by_writer, key=lambda record: record.order))

    def _read_new(self, entry: os.DirEntry[str]) -> list[Record]:
        """The new records of one file."""
        offset = self._offsets.get(entry.name, 0)
        size = entry.stat().st_size
        if size <= offset:
            return []
        with open(entry.path, "rb") as file:
            file.seek(offset)
            lines = _lines(file)
            lines = _thin_progress(lines) if offset == 0 and size > _BLOCK_BYTES else lines
            decoded = (decode(line.decode("utf-8", "replace")) for line in lines)
            found = [record for record in decoded if record is not None]
            self._offsets[entry.name] = file.tell()
        return found


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The complete lines from the current position, which is after the last of them at the end.

    Does not use str.splitlines, which also splits at U+2028 and the like inside JSON strings.
    """
    while line := file.readline():
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)  # the rest is not written yet
            return
        yield line


def _thin_progress(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, but of consecutive Progress lines only the first and the last."""
    for is_progress, series in groupby(lines, lambda line: _PROGRESS in line):
        if is_progress:
            yield next(series)
            yield from deque(series, maxlen=1)  # noqa: B031 - continues after the first line
        else:
            yield from series


def read(directory: Path) -> list[Record]:
    """All events of a run, merged; see `Follower.poll` for long runs."""
    return Follower(directory).poll()
