"""Keys and values over a NATS server. A bucket is a stream, and its changes are read by their positions.

Only a controller may use it: an agent has no rights to the JetStream API.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from nats.js.api import KeyValueConfig, RawStreamMsg
from nats.js.errors import BucketNotFoundError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KV_DEL, KV_OP, KV_PURGE, KeyValue

from prime_train.bus.base import (
    BusError,
    Entry,
    RevisionConflict,
    check_subject,
    decode_value,
    encode_value,
    wait_for,
)
from prime_train.bus.nats_stream import Connection, read_stream

_MOST = 1000  # entries of one reading
_LOOK_S = 0.5
_READ_S = 60.0


class NatsKeyValues:
    """A bucket, which is created when it is first used."""

    def __init__(self, bus: Connection, bucket: str) -> None:
        self.bus = bus
        self.bucket = bucket
        self._values: KeyValue | None = None
        self._lives = 0

    @property
    def pattern(self) -> str:
        return f"$KV.{self.bucket}.>"

    @property
    def stream(self) -> str:
        return f"KV_{self.bucket}"

    def get(self, key: str) -> Entry | None:
        return self.bus.call(self._get(check_subject(key)), about=key)

    async def _get(self, key: str) -> Entry | None:
        try:
            found = await (await self._open()).get(key)
        except KeyNotFoundError:
            return None
        return Entry(key, decode_stored(key, found.value or b""), found.revision or 0)

    def list_entries(self) -> list[Entry]:
        found: list[Entry] = []
        first = 1
        while entries := self.read_changes(first):
            found += entries
            first = entries[-1].revision + 1
        return [entry for entry in found if entry.value is not None]

    def put(self, key: str, value: Mapping[str, Any]) -> int:
        content = encode_value(value)

        async def write() -> int:
            return await (await self._open()).put(check_subject(key), content)

        return self.bus.call(write(), about=f"$KV.{self.bucket}.{key}")

    def update(self, key: str, value: Mapping[str, Any], revision: int) -> int:
        content = encode_value(value)

        async def write() -> int | None:
            values = await self._open()
            try:
                if revision == 0:
                    return await values.create(check_subject(key), content)
                return await values.update(check_subject(key), content, last=revision)
            except KeyWrongLastSequenceError:
                return None

        found = self.bus.call(write(), about=f"$KV.{self.bucket}.{key}")
        if found is None:
            raise RevisionConflict(f"{key} has another revision")
        return found

    def delete(self, key: str) -> None:
        async def delete() -> bool:
            return await (await self._open()).delete(check_subject(key))

        self.bus.call(delete(), about=f"$KV.{self.bucket}.{key}")

    def watch(self) -> NatsKeyWatch:
        return NatsKeyWatch(self)

    def read_changes(self, first: int) -> list[Entry]:
        """The entries whose revision is at least `first`, in the order of their revisions."""

        async def read() -> list[RawStreamMsg]:
            await self._open()
            return await read_stream(self.bus.client, self.stream, self.pattern, first, _MOST)

        return [self._to_entry(message) for message in self.bus.call(read(), _READ_S, self.stream)]

    def _to_entry(self, message: RawStreamMsg) -> Entry:
        key = (message.subject or "").removeprefix(f"$KV.{self.bucket}.")
        is_deleted = (message.headers or {}).get(KV_OP) in (KV_DEL, KV_PURGE)
        value = None if is_deleted else decode_stored(key, message.data or b"")
        return Entry(key, value, message.seq or 0)

    async def _open(self) -> KeyValue:
        if self._values is None or self._lives != self.bus.lives:
            jetstream = self.bus.client.jetstream()
            try:
                self._values = await jetstream.key_value(self.bucket)
            except BucketNotFoundError:
                self._values = await jetstream.create_key_value(KeyValueConfig(self.bucket, history=1))
            self._lives = self.bus.lives
        return self._values


class NatsKeyWatch:
    """Reads the stream of a bucket from the last revision on; after each connection from its start."""

    def __init__(self, values: NatsKeyValues) -> None:
        self._values = values
        self._seen: dict[str, int] = {}
        self._next = 1
        self._lives = 0

    def take(self, timeout_s: float) -> list[Entry]:
        return wait_for(self._read, timeout_s, lambda left_s: time.sleep(min(left_s, _LOOK_S)))

    def _read(self) -> list[Entry]:
        if self._lives != self._values.bus.lives:
            self._lives, self._next = self._values.bus.lives, 1
        try:
            entries = self._values.read_changes(self._next)
        except BusError as error:  # the next call reads the same entries
            self._values.bus.note(str(error))
            return []
        changed = [entry for entry in entries if entry.revision > self._seen.get(entry.key, 0)]
        if entries:
            self._next = entries[-1].revision + 1
            self._seen |= {entry.key: entry.revision for entry in changed}
        return changed

    def close(self) -> None:
        """Nothing is open between two calls."""


def decode_stored(key: str, content: bytes) -> Mapping[str, Any]:
    try:
        return decode_value(content)
    except ValueError as error:
        raise BusError(f"the value of {key} is not one of this bus: {error}") from error
