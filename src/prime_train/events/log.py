"""Writes events as one line each to an append-only file per writer, and reads them merged. Judges none of them.

The supervisor and every trainer rank write their own file (network file systems promise nothing for
O_APPEND from several writers); readers merge them by time, writer and sequence number and leave a
torn last line alone until the rest of it arrives.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, get_args

from prime_train.errors import UserError
from prime_train.events.kinds import Event, Progress, Unrecognised
from prime_train.redaction import redact, secrets

VERSION = 1
_BLOCK_BYTES = 1 << 20
_PROGRESS = f'"kind":"{Progress.kind}"'.encode()
_WORDS = frozenset({"what", "why", "fix", "where", "reason", "detail", "failed"})  # these may quote a program
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event) if cls is not Unrecognised}


@dataclass(frozen=True, slots=True)
class Record:
    """One event with its envelope. `time_s` is wall-clock seconds since the epoch, of the writer's machine."""

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
    """The record of one line; None for a line that is not one (torn by a crash, or foreign)."""
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


def masked(event: Event, hidden: tuple[str, ...]) -> Event:
    """The event without secrets in its words; what programs act on, paths and names, stays as it is."""
    words = {f.name: getattr(event, f.name) for f in fields(event) if f.name in _WORDS}
    changed: dict[str, Any] = {name: redact(text, hidden) for name, text in words.items()}
    return replace(event, **changed) if changed != words else event


class EventLog:
    """Appends one writer's events. Safe from several threads; each line is one write(2) of its own."""

    def __init__(self, directory: Path, writer: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{writer}.jsonl"
        self._writer = writer
        self._hidden = secrets(os.environ)
        self._lock = threading.Lock()
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        newlines, last = 0, b"\n"
        with open(self.path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                newlines, last = newlines + block.count(b"\n"), block[-1:]
        self._torn = last != b"\n"  # a crash, or a full disk, cut the last line
        self._seq = newlines + self._torn  # a line that lacks only its newline has its number already

    def append(self, event: Event) -> Record:
        """Write one event. Raises OSError where the disk does not take the whole of it."""
        with self._lock:
            record = Record(time.time(), self._writer, self._seq, masked(event, self._hidden))
            # A lone surrogate (a file name that is not UTF-8) becomes the JSON escape that means it.
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
    """Reads the events of a run directory as they are written: each call of `poll` returns what is new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[str, int] = {}

    def poll(self) -> list[Record]:
        """New records, merged by time; each writer's stay in its own order, were its clock set back meanwhile.

        Costs one stat per file when nothing is new. Of a file of more than a megabyte that is read for the first time,
        as when a supervisor takes over a run of days, each unbroken series of progress is told by its first and last:
        what lies between them changes nothing of what is known after it, and is most of a long file. Of a file that
        is followed nothing is left out: how long a step takes is learned from it, after a stop of hours too.
        Raises UserError where they may not be read.
        """
        by_writer: list[list[Record]] = []
        try:
            entries = os.scandir(self._directory)
            by_writer.extend(self._more(entry) for entry in entries if entry.name.endswith(".jsonl"))
        except FileNotFoundError:  # the run was deleted, maybe between two of its files
            pass
        except PermissionError as error:
            raise UserError(
                what="the events of the run may not be read: permission denied",
                where=str(error.filename or self._directory),
                why="they belong to another user, or their rights were changed",
                fix=f"ls -ld {self._directory}; then chown or chmod it",
            ) from error
        return list(heapq.merge(*by_writer, key=lambda record: record.order))

    def _more(self, entry: os.DirEntry[str]) -> list[Record]:
        """What is new in one file."""
        offset = self._offsets.get(entry.name, 0)
        size = entry.stat().st_size
        if size <= offset:
            return []
        with open(entry.path, "rb") as file:
            file.seek(offset)
            lines = _lines(file)
            lines = _without_series(lines) if offset == 0 and size > _BLOCK_BYTES else lines
            decoded = (decode(line.decode("utf-8", "replace")) for line in lines)
            found = [record for record in decoded if record is not None]
            self._offsets[entry.name] = file.tell()
        return found


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The whole lines from where the file stands; it stands after the last of them then.

    Not by str.splitlines: it also cuts at U+2028 and its like, which JSON strings may hold.
    """
    while line := file.readline():
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)  # its rest is still to come
            return
        yield line


def _without_series(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, of progress lines that follow each other only the first and the last."""
    last = b""
    in_series = False
    for line in lines:
        if _PROGRESS in line:
            if not in_series:
                yield line
            else:
                last = line
            in_series = True
            continue
        if last:
            yield last
            last = b""
        in_series = False
        yield line
    if last:
        yield last


def read(directory: Path) -> list[Record]:
    """The events of a run, merged; of a long one as `Follower.poll` says."""
    return Follower(directory).poll()
