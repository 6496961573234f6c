"""A bus in a folder of this machine, for several processes of one user. Opens no port and needs no package."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prime_train.bus.base import (
    KEPT,
    OBJECTS_BYTES,
    QUEUED_BYTES,
    VALUE_BYTES,
    BusError,
    BusMessage,
    BusRefused,
    Entry,
    RevisionConflict,
    UnknownOutcome,
    check_name,
    check_pattern,
    check_subject,
    decode_value,
    encode_message,
    encode_value,
    matches,
    wait_for,
)
from prime_train.bus.local_objects import LocalObjects
from prime_train.bus.message_log import MessageLog, MessageReader, lock, report_disk
from prime_train.core.outside import MARK_BYTES, read_bytes
from prime_train.core.rundir import make_folder, write_atomic

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_MOST_TAKEN = 1000


class LocalBus:
    """`folder` is created for its owner alone."""

    def __init__(self, folder: Path, *, kept_bytes: int = QUEUED_BYTES, passing_bytes: int = QUEUED_BYTES) -> None:
        make_folder(folder)
        status = folder.stat()
        # A link of another user could lead to any folder of this one.
        owners = {status.st_uid, folder.lstat().st_uid}
        if owners != {os.getuid()} or status.st_mode & 0o077:
            raise BusRefused(f"{folder} is open to other users, who could send commands through it: chmod 700 it")
        self._folder = folder
        self._kept = MessageLog(folder / "kept", keeps=True, most_bytes=kept_bytes)
        self._passing = MessageLog(folder / "passing", keeps=False, most_bytes=passing_bytes)

    def publish(self, subject: str, body: Mapping[str, Any], message_id: str) -> None:
        self._send(check_subject(subject), body, message_id, "")

    def _send(self, subject: str, body: Mapping[str, Any], message_id: str, reply: str) -> None:
        encode_message(body, message_id)  # raises for what a reader would refuse
        log = self._kept if matches(KEPT, subject) else self._passing
        with report_disk():
            log.append(subject, message_id, reply, body)

    def subscribe(self, pattern: str, name: str = "") -> LocalSubscription:
        check_pattern(pattern)
        if name:
            return LocalSubscription(pattern, (self._kept.reader_of(check_name(name)),), self._kept, name)
        return LocalSubscription(pattern, (self._kept.reader_at_end(), self._passing.reader_at_end()))

    def request(self, subject: str, body: Mapping[str, Any], message_id: str, timeout_s: float) -> BusMessage:
        reply = f"_INBOX.{os.urandom(8).hex()}"
        answers = self.subscribe(reply)
        self._send(check_subject(subject), body, message_id, reply)
        if found := answers.take(timeout_s):
            return found[0]
        raise UnknownOutcome(f"no answer on {subject} within {timeout_s:g} s")

    def kv(self, bucket: str) -> LocalKeyValues:
        return LocalKeyValues(self._folder / "kv" / check_name(bucket))

    def objects(self, bucket: str, most_bytes: int = OBJECTS_BYTES) -> LocalObjects:
        return LocalObjects(self._folder / "objects" / check_name(bucket), most_bytes)

    def take_problems(self) -> list[str]:
        return []  # each call fails by itself

    def close(self) -> None:
        """Nothing is open between two calls."""


class LocalSubscription:
    """Reads the logs of a bus; `name`: it has a cursor in `kept`."""

    def __init__(
        self, pattern: str, readers: tuple[MessageReader, ...], kept: MessageLog | None = None, name: str = ""
    ) -> None:
        self.lost = 0
        self._pattern, self._readers, self._kept, self._name = pattern, readers, kept, name

    @property
    def rejected(self) -> int:
        return sum(reader.rejected for reader in self._readers)

    def take(self, timeout_s: float) -> list[BusMessage]:
        return wait_for(self._read, timeout_s, create_pause())

    def _read(self) -> list[BusMessage]:
        found: list[BusMessage] = []
        for reader in self._readers:
            for line in reader.read():
                self.lost += line.missing
                if matches(self._pattern, line.subject):
                    found.append(BusMessage(line.subject, line.id, line.body, line.reply))
                if len(found) >= _MOST_TAKEN:
                    return found
        return found

    def acknowledge(self) -> None:
        if self._kept is not None:
            with report_disk():
                self._kept.set_cursor(self._name, self._readers[0].place)

    def close(self) -> None:
        """Nothing is open between two calls."""


class LocalKeyValues:
    """A file for each key, below the folder of the bucket. The lock makes a comparison and its write one act."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._values = folder / "values"
        self._count = folder / "revision"
        make_folder(self._values)

    def get(self, key: str) -> Entry | None:
        found = self.read_file(key)
        return found if found is not None and found.value is not None else None

    def read_file(self, key: str) -> Entry | None:
        """Also a key that was deleted, as an entry without a value."""
        try:
            raw = decode_value(read_bytes(self._path(key), 2 * VALUE_BYTES, self._folder))
            value, revision = raw["value"], raw["revision"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise BusError(f"the value of {key} cannot be read: {error}") from error
        if type(revision) is not int or not (value is None or isinstance(value, dict)):
            raise BusError(f"the file of {key} is not one of this bus")
        return Entry(key, value, revision)

    def list_entries(self) -> list[Entry]:
        return [entry for entry in self.list_files() if entry.value is not None]

    def list_files(self) -> list[Entry]:
        names = sorted(path.name for path in self._values.iterdir() if not path.name.startswith("."))
        found = (self.read_file(name.removesuffix(".json")) for name in names)
        return [entry for entry in found if entry is not None]

    def put(self, key: str, value: Mapping[str, Any]) -> int:
        encode_value(value)
        return self._write(key, value, None)

    def update(self, key: str, value: Mapping[str, Any], revision: int) -> int:
        encode_value(value)
        return self._write(key, value, revision)

    def delete(self, key: str) -> None:
        # An entry without a value stays: its revision must never be given again.
        self._write(key, None, None)

    def _write(self, key: str, value: Mapping[str, Any] | None, expected: int | None) -> int:
        check_subject(key)
        with report_disk(), lock(self._folder / "lock"):
            found = self.read_file(key)
            current = found.revision if found is not None and found.value is not None else 0
            if expected is not None and expected != current:
                raise RevisionConflict(f"{key} has revision {current}, and not {expected}")
            # The count follows the value, so that a watcher that reads the count finds the value.
            revision = max(self.count(), found.revision if found is not None else 0) + 1
            write_atomic(self._path(key), json.dumps({"revision": revision, "value": value}))
            write_atomic(self._count, str(revision))
        return revision

    def count(self) -> int:
        """The number of writes to this bucket, which grows after each."""
        try:
            return int(read_bytes(self._count, MARK_BYTES, self._folder))
        except (OSError, ValueError):
            return max((entry.revision for entry in self.list_files()), default=0)

    def watch(self) -> LocalKeyWatch:
        return LocalKeyWatch(self)

    def _path(self, key: str) -> Path:
        return self._values / f"{check_subject(key)}.json"


class LocalKeyWatch:
    """Lists a bucket again after each change, and every few seconds for a writer that was killed."""

    _EVERY_S = 5.0

    def __init__(self, values: LocalKeyValues) -> None:
        self._values = values
        self._seen: dict[str, int] = {}
        self._count = -1
        self._listed_s = 0.0

    def take(self, timeout_s: float) -> list[Entry]:
        return wait_for(self._look, timeout_s, create_pause())

    def _look(self) -> list[Entry]:
        count = self._values.count()
        if count == self._count and time.monotonic() - self._listed_s < self._EVERY_S:
            return []
        self._count, self._listed_s = count, time.monotonic()
        changed = [entry for entry in self._values.list_files() if entry.revision > self._seen.get(entry.key, 0)]
        changed.sort(key=lambda entry: entry.revision)
        self._seen |= {entry.key: entry.revision for entry in changed}
        return changed

    def close(self) -> None:
        """Nothing is open between two calls."""


def create_pause() -> Callable[[float], None]:
    """A wait between two looks, which is longer each time."""
    pause_s = _FIRST_PAUSE_S

    def pause(left_s: float) -> None:
        nonlocal pause_s
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    return pause
