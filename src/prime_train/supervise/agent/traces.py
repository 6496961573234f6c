"""Finds the profiler traces of a run, and sends them to a controller in parts. Bounded; unpacks nothing.

The trainer gives a trace its name when it is whole. A snapshot of memory is not sent: it is a pickle, and who opens one
runs what is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple

from prime_train.bus.fleet_traces import PART_BYTES, TRACE_BYTES, TRACE_NAME, TracePart, count_parts
from prime_train.core.errors import UserError
from prime_train.core.outside import MARK_BYTES, open_folder, open_regular, read_bytes, read_json
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.core.units import format_bytes

_MOST_LISTED = 1000  # files in the folder
_MOST_SENT = 64  # of one run


class TraceFile(NamedTuple):
    name: str
    size_bytes: int
    modified_ns: int

    @property
    def note(self) -> str:
        """Why it is too large for a controller; "" for one that is not."""
        if self.size_bytes <= TRACE_BYTES:
            return ""
        size, most = format_bytes(self.size_bytes), format_bytes(TRACE_BYTES)
        return f"it has {size}, and at most {most} are sent: copy it from the folder of the run"


class TraceMessage(NamedTuple):
    id: str
    body: dict[str, Any]


def list_traces(run_dir: RunDir) -> list[TraceFile]:
    """The traces of a run, oldest first. None where the folder cannot be listed, such as a link."""
    found = []
    with suppress(OSError), _opened(run_dir) as folder, os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_LISTED):
            if TRACE_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append(TraceFile(entry.name, status.st_size, status.st_mtime_ns))
    return sorted((one for one in found if one.size_bytes), key=lambda one: one.modified_ns)


@contextmanager
def _opened(run_dir: RunDir) -> Iterator[int]:
    folder = open_folder(run_dir.profile)
    try:
        yield folder
    finally:
        os.close(folder)


def read_local_trace(run_dir: RunDir, name: str) -> bytes:
    """The bytes of a trace in the folder of a run. Raises UserError."""
    if not TRACE_NAME.fullmatch(name):
        raise UserError("there is no such trace", str(run_dir.profile), "no trace has such a name", "reload the page")
    try:
        return read_bytes(run_dir.profile / name, TRACE_BYTES, run_dir.path)
    except OSError as error:
        why, fix = error.strerror or str(error), f"copy it from {run_dir.profile}"
        raise UserError("the trace cannot be read", str(run_dir.profile / name), why, fix) from error


class TraceQueue:
    """The traces that the bus has not stored yet. `place_file`: which ones it has, by size and time."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._place_file = run_dir.bus / "traces.json"
        self._sent = _read_sent(run_dir)
        self._life = os.urandom(8).hex()  # two runs may have the same trace, and a bus keeps one message for each id
        self._count = 0
        self._messages: Iterator[TraceMessage] = iter(())
        self._message: TraceMessage | None = None

    def next_message(self) -> TraceMessage | None:
        """The same one until it is acknowledged; None if there is none."""
        if self._message is None:
            self._message = next(self._messages, None)
        if self._message is None and (trace := self._find_next()) is not None:
            self._messages = self._send(trace)
            self._message = next(self._messages, None)
        return self._message

    def acknowledge(self) -> None:
        """The bus has stored the message."""
        self._message = None

    def _find_next(self) -> TraceFile | None:
        for trace in list_traces(self._run_dir):
            is_room = trace.name in self._sent or len(self._sent) < _MOST_SENT
            if is_room and self._sent.get(trace.name) != [trace.size_bytes, trace.modified_ns]:
                return trace
        return None

    def _send(self, trace: TraceFile) -> Iterator[TraceMessage]:
        """The messages of a trace. It counts as sent once the last one is acknowledged."""
        for part in _read_parts(self._run_dir, trace):
            self._count += 1
            yield TraceMessage(f"trace:{self._life}:{self._count}", part.to_body())
        self._sent[trace.name] = [trace.size_bytes, trace.modified_ns]
        # Without the file it is sent again after a restart, and replaces the same.
        with suppress(OSError):
            make_folder(self._place_file.parent)
            write_atomic(self._place_file, json.dumps(self._sent))


def _read_parts(run_dir: RunDir, trace: TraceFile) -> Iterator[TracePart]:
    saved_s, note = trace.modified_ns / 1e9, trace.note
    if not note:
        try:
            # Opened once: a later trace of the same step takes the name, and the parts stay those of this one.
            with open_regular(run_dir.profile / trace.name, run_dir.path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
                for number in range(count_parts(trace.size_bytes)):
                    yield TracePart(trace.name, trace.size_bytes, saved_s, digest, number, file.read(PART_BYTES))
            return
        except OSError as error:
            note = f"it cannot be read: {error.strerror or error}"
    yield TracePart(trace.name, trace.size_bytes, saved_s, note=note)


def _read_sent(run_dir: RunDir) -> dict[str, list[int]]:
    try:
        found = read_json(run_dir.bus / "traces.json", MARK_BYTES, within=run_dir.path)
    except (OSError, ValueError):
        return {}
    pairs = list(found.items())[:_MOST_SENT] if isinstance(found, dict) else []
    return {name: sent for name, sent in pairs if isinstance(sent, list)}
