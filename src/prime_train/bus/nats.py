"""A bus over a NATS server: the verbs, and what receives messages. Its calls are those of a thread.

`nats_connection.py` has the connection, on whose event loop each verb runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription

from prime_train.bus.base import (
    KEPT,
    OBJECTS_BYTES,
    QUEUED_BYTES,
    BusError,
    BusMessage,
    BusRefused,
    check_name,
    check_pattern,
    check_subject,
    decode_message,
    encode_message,
    matches,
    wait_for,
)
from prime_train.bus.credentials import Credentials
from prime_train.bus.nats_connection import ANSWER_S, LONGEST_PAUSE_S, NatsConnection
from prime_train.bus.nats_kv import NatsKeyValues
from prime_train.bus.nats_objects import NatsObjects
from prime_train.bus.nats_stream import STREAM, read_stream

_LOOK_S = 0.5  # a kept message is looked for even if nothing announced it


class NatsBus:
    """`name`: of this client, as the server lists it. Returns at once; the first calls may find no connection yet."""

    def __init__(self, credentials: Credentials, name: str, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self.connection = NatsConnection(credentials, name, longest_pause_s)

    def publish(self, subject: str, body: Mapping[str, Any], message_id: str) -> None:
        content = encode_message(body, message_id)
        if matches(KEPT, check_subject(subject)):
            self.connection.call(self._store(subject, content, message_id), about=subject)
        else:
            self.connection.call(self._pass_on(subject, content), about=subject)

    def subscribe(self, pattern: str, name: str = "") -> NatsSubscription | NatsQueue:
        check_pattern(pattern)
        if name:
            check_name(name)
            return NatsQueue(self.connection, pattern)
        return NatsSubscription(self.connection, pattern)

    def request(self, subject: str, body: Mapping[str, Any], message_id: str, timeout_s: float) -> BusMessage:
        content = encode_message(body, message_id)
        asked = self._ask(check_subject(subject), content, timeout_s)
        answer = self.connection.call(asked, timeout_s + 1.0, about=subject)
        try:
            return decode_message(answer.subject, answer.data)
        except ValueError as error:
            raise BusRefused(f"the answer on {subject} is no message: {error}") from error

    def kv(self, bucket: str) -> NatsKeyValues:
        return NatsKeyValues(self.connection, check_name(bucket))

    def objects(self, bucket: str, most_bytes: int = OBJECTS_BYTES) -> NatsObjects:
        return NatsObjects(self.connection, check_name(bucket), most_bytes)

    def take_problems(self) -> list[str]:
        return self.connection.take_problems()

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether there is a connection, at the latest after the time."""
        return self.connection.wait_connected(timeout_s)

    def close(self) -> None:
        self.connection.close()

    async def _store(self, subject: str, content: bytes, message_id: str) -> None:
        # The message itself asks for the receipt: an agent may use nothing of the JetStream API.
        await self.connection.client.jetstream().publish(
            subject, content, timeout=ANSWER_S, stream=STREAM, headers={"Nats-Msg-Id": message_id}
        )

    async def _pass_on(self, subject: str, content: bytes) -> None:
        await self.connection.client.publish(subject, content)

    async def _ask(self, subject: str, content: bytes, timeout_s: float) -> Msg:
        return await self.connection.client.request(subject, content, timeout=timeout_s)


class NatsSubscription:
    """Messages that pass by. They are kept for `take` up to a limit, and then the oldest are dropped."""

    def __init__(self, connection: NatsConnection, pattern: str) -> None:
        self.lost = 0
        self.rejected = 0
        self.pattern = pattern
        self.source: ClientSubscription | None = None
        self._connection = connection
        self._found: deque[tuple[BusMessage, int]] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        connection.listen(self)

    async def receive(self, message: Msg) -> None:
        try:
            found = decode_message(message.subject, message.data, message.reply)
        except ValueError:
            self.rejected += 1
            return
        with self._changed:
            self._found.append((found, len(message.data)))
            self._queued_bytes += len(message.data)
            while self._queued_bytes > QUEUED_BYTES:
                self._queued_bytes -= self._found.popleft()[1]
                self.lost += 1
            self._changed.notify()

    def take(self, timeout_s: float) -> list[BusMessage]:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._found), timeout_s)
            found = [message for message, _ in self._found]
            self._found.clear()
            self._queued_bytes = 0
        return found

    def acknowledge(self) -> None:
        """They have passed by, and nothing is kept."""

    def close(self) -> None:
        self._connection.forget(self)


class NatsQueue:
    """Kept messages, read by their position in the stream. What was acknowledged is deleted from it."""

    _MOST = 200  # of one call

    def __init__(self, connection: NatsConnection, pattern: str) -> None:
        self.lost = 0
        self.rejected = 0
        self._connection = connection
        self._pattern = pattern
        self._next = 1
        self._lives = 0
        self._passing = NatsSubscription(connection, pattern)  # wakes the reader

    def take(self, timeout_s: float) -> list[BusMessage]:
        return wait_for(self._read, timeout_s, lambda left_s: self._passing.take(min(left_s, _LOOK_S)))

    def _read(self) -> list[BusMessage]:
        lives = self._connection.lives
        if lives != self._lives:
            self._lives, self._next = lives, 1  # the server may have another store
        try:
            read = self._connection.call(
                read_stream(self._connection.client, STREAM, self._pattern, self._next, self._MOST), 60.0, STREAM
            )
        except BusError as error:  # the next call reads the same messages
            self._connection.note(str(error))
            return []
        found = []
        for message in read:
            self._next = (message.seq or 0) + 1
            try:
                found.append(decode_message(message.subject or "", message.data or b""))
            except ValueError:
                self.rejected += 1
        return found

    def acknowledge(self) -> None:
        """Repeated for what an earlier call did not reach."""
        if self._next > 1:
            self._connection.call(self._delete(self._next), about=STREAM)

    async def _delete(self, before: int) -> None:
        await self._connection.client.jetstream().purge_stream(STREAM, seq=before, subject=self._pattern)

    def close(self) -> None:
        self._passing.close()
