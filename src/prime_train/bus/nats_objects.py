"""Large values over a NATS server. A bucket is an object store of JetStream, and is read by positions.

Only a controller may use it: an agent has no rights to the JetStream API.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

from nats.js.api import RawStreamMsg
from nats.js.errors import BucketNotFoundError, NotFoundError
from nats.js.object_store import ObjectStore

from prime_train.bus.base import OBJECT_BYTES, BusError, check_object, check_subject
from prime_train.bus.nats_stream import Connection, read_stream
from prime_train.core.outside import parse_json

_MOST_CHUNKS = 64  # nats-py sends 128 KiB in each
_MOST_NAMES = 10_000
_WRITE_S = 30.0


class NatsObjects:
    """A bucket, which is created when it is first used. `most_bytes`: beyond that the server refuses."""

    def __init__(self, bus: Connection, bucket: str, most_bytes: int) -> None:
        self._bus = bus
        self._bucket = bucket
        self._most_bytes = most_bytes
        self._store: ObjectStore | None = None
        self._lives = 0

    @property
    def _stream(self) -> str:
        return f"OBJ_{self._bucket}"

    def put(self, name: str, content: bytes) -> None:
        check_object(content)
        check_subject(name)

        async def write() -> None:
            await (await self._open()).put(name, content)

        self._bus.call(write(), _WRITE_S, f"$O.{self._bucket}")

    def get(self, name: str) -> bytes | None:
        return self._bus.call(self._get(check_subject(name)), _WRITE_S, name)

    async def _get(self, name: str) -> bytes | None:
        found = await self._find(name)
        if found is None:
            return None
        # `ObjectStore.get` needs a consumer, which hears nothing for a while after its server restarts.
        chunks = await read_stream(self._bus.client, self._stream, self._chunks(found), 1, _MOST_CHUNKS)
        content = b"".join(chunk.data or b"" for chunk in chunks)
        digest = "SHA-256=" + base64.urlsafe_b64encode(sha256(content).digest()).decode()
        if len(content) > OBJECT_BYTES or found.get("digest") != digest:
            raise BusError(f"the object {name} is not whole")
        return content

    async def _find(self, name: str) -> dict[str, Any] | None:
        """What the store keeps about an object; None where it is not there."""
        await self._open()
        try:
            message = await self._bus.client.jetstream().get_last_msg(self._stream, self._about(name))
        except NotFoundError:
            return None
        found = _read_about(message)
        return None if found.get("deleted") else found

    def delete(self, name: str) -> None:
        self._bus.call(self._delete(check_subject(name)), _WRITE_S, name)

    async def _delete(self, name: str) -> None:
        found = await self._find(name)
        if found is None:
            return
        # The entry goes last, so that what was interrupted is deleted by the next call.
        for subject in (self._chunks(found), self._about(name)):
            await self._bus.client.jetstream().purge_stream(self._stream, subject=subject)

    def list_names(self) -> list[str]:
        async def read() -> list[RawStreamMsg]:
            await self._open()
            return await read_stream(self._bus.client, self._stream, f"$O.{self._bucket}.M.>", 1, _MOST_NAMES)

        found = map(_read_about, self._bus.call(read(), 2 * _WRITE_S, self._stream))
        return sorted(str(one.get("name")) for one in found if not one.get("deleted"))

    def _about(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def _chunks(self, found: dict[str, Any]) -> str:
        return f"$O.{self._bucket}.C.{check_subject(str(found.get('nuid')))}"

    async def _open(self) -> ObjectStore:
        if self._store is None or self._lives != self._bus.lives:
            jetstream = self._bus.client.jetstream()
            try:
                self._store = await jetstream.object_store(self._bucket)
            except BucketNotFoundError:
                self._store = await jetstream.create_object_store(self._bucket, max_bytes=self._most_bytes)
            self._lives = self._bus.lives
        return self._store


def _read_about(message: RawStreamMsg) -> dict[str, Any]:
    try:
        found = parse_json(message.data or b"")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BusError("the entry of an object is not one of this bus")
    return found
