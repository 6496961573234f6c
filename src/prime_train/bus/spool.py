"""The events of a run that the bus has not stored yet, in batches with an id. Sends nothing.

The files of the events are the spool: they hold everything, and the run writes them in any case. So a bus that is away
for a week costs no byte and no step, and nothing is thrown away. Only the place up to which the bus has stored them is
kept beside. A batch that was sent and not acknowledged is sent again, also after a restart: with the same id where its
events are the same, and a reader drops what it has by writer, life and position.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prime_train.core.outside import RECORD_BYTES, read_json
from prime_train.core.rundir import make_folder, write_atomic
from prime_train.events import Follower, Record
from prime_train.events.follower import ReadFile
from prime_train.events.record import as_bytes, encode, read_line

Value = TypeVar("Value")
BATCH_BYTES = 2**20
BATCH_EVENTS = 200
WRITERS_KEPT = 1024
LIVES_KEPT = 16  # per writer; a batch that is sent again is among the latest
Positions = Mapping[str, Mapping[str, int]]  # writer -> life -> its highest position


class EventBatch(NamedTuple):
    """Events in their order, as the lines of their files."""

    id: str
    lines: tuple[str, ...]

    @property
    def body(self) -> dict[str, Any]:
        return {"events": list(self.lines)}


class Spool:
    """`place_file`: up to where the events were acknowledged. It is the only file that is written."""

    def __init__(self, events: Path, place_file: Path) -> None:
        self._place_file = place_file
        files, self._sent = _read_place(place_file)
        self._follower = Follower(events, files, brief=())
        self._files: dict[str, Any] = {name: asdict(file) for name, file in files.items()}  # read, and all acknowledged
        self._stream: Iterator[Record] | None = None
        self._held: Record | None = None  # it was read, and is too long for the batch before it
        self._batch: tuple[EventBatch, list[Record]] | None = None

    def next_batch(self) -> EventBatch | None:
        """The next events; the same batch until it is acknowledged. None if every event is."""
        if self._batch is None:
            records: list[Record] = []
            lines: list[str] = []
            size = 0
            for record in self._read():
                line = as_bytes(encode(record)).decode()
                if lines and size + len(line) > BATCH_BYTES:
                    self._held = record
                    break
                records.append(record)
                lines.append(line)
                size += len(line)
                if len(lines) == BATCH_EVENTS:
                    break
            if lines:
                self._batch = EventBatch(sha256("\n".join(lines).encode()).hexdigest()[:32], tuple(lines)), records
        return self._batch[0] if self._batch else None

    def _read(self) -> Iterator[Record]:
        if self._held is not None:
            held, self._held = self._held, None
            yield held
        if self._stream is None:
            self._stream = self._follower.stream()
        for record in self._stream:
            if not is_known(self._sent, record):
                yield record
        self._stream = None

    def acknowledge(self) -> None:
        """The bus has stored the batch."""
        assert self._batch is not None, "a batch was taken"
        for record in self._batch[1]:
            self._sent = with_position(self._sent, record)
        self._batch = None
        if (
            self._stream is None and self._held is None
        ):  # in the middle of a reading the files are ahead of what was sent
            self._files = {name: asdict(file) for name, file in self._follower.files.items()}
        # Without the file more events are sent again after a restart, and their reader drops them.
        with contextlib.suppress(OSError):
            make_folder(self._place_file.parent)
            write_atomic(self._place_file, json.dumps({"files": self._files, "sent": self._sent}))


def is_known(positions: Positions, record: Record) -> bool:
    return record.seq <= positions.get(record.writer, {}).get(record.life, -1)


def with_position(positions: Positions, record: Record) -> Positions:
    """The positions after a record, with the latest writers and lives."""
    lives = _put_last(positions.get(record.writer, {}), record.life, record.seq, LIVES_KEPT)
    return _put_last(positions, record.writer, lives, WRITERS_KEPT)


def _put_last(found: Mapping[str, Value], key: str, value: Value, most: int) -> dict[str, Value]:
    """The mapping with this entry as its last; the first entries go where there are more than `most`."""
    others = {name: each for name, each in found.items() if name != key}
    for name in list(others)[: max(0, len(others) + 1 - most)]:
        del others[name]
    return others | {key: value}


def read_batch(body: Mapping[str, Any]) -> tuple[list[Record], int]:
    """The records of a batch that was received, and how many of its lines are none."""
    lines = body.get("events")
    if not isinstance(lines, list) or len(lines) > BATCH_EVENTS:
        return [], 1
    texts = [line.encode(errors="replace") for line in lines if isinstance(line, str)]
    found = [record for text in texts if (record := read_line(text).record) is not None]
    return found, len(lines) - len(found)


def read_positions(found: object) -> Positions:
    """Positions from outside; what is none of them is left out."""
    if not isinstance(found, dict):
        return {}
    lives = {writer: each for writer, each in found.items() if isinstance(each, dict)}
    return {
        str(writer): {str(life): seq for life, seq in list(each.items())[-LIVES_KEPT:] if type(seq) is int}
        for writer, each in lives.items()
    }


def _read_place(path: Path) -> tuple[dict[str, ReadFile], Positions]:
    """Without a file that can be read every event is sent again, and dropped by its reader."""
    try:
        found = read_json(path, RECORD_BYTES)
        return {name: ReadFile(**file) for name, file in found["files"].items()}, read_positions(found["sent"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, {}
