"""Makes the stream that keeps messages, and reads streams by position. The bus keeps the connection."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RawStreamMsg, StreamConfig
from nats.js.errors import NotFoundError

from prime_train.bus.base import KEPT, QUEUED_BYTES

STREAM = "PT_EVENTS"  # of the kept messages
STORE_BYTES = 2**30
SAME_ID_S = 600.0  # the server drops a repeated id for so long; the fleet drops repeated events at any time
Value = TypeVar("Value")
_ANSWER_S = 2.0


class Connection(Protocol):
    """What readers of streams need from a bus."""

    @property
    def client(self) -> Client: ...

    @property
    def lives(self) -> int:
        """How many connections there were up to now."""

    def call(self, work: Coroutine[Any, Any, Value], timeout_s: float = ..., about: str = ...) -> Value:
        """The result of a coroutine on the connection. Raises BusError."""

    def note(self, text: str) -> None:
        """Keep a problem for `take_problems`."""


def create_stream(bus: Connection, store_bytes: int = STORE_BYTES) -> None:
    """Make the stream that keeps messages, in half the store. One that is there stays. Raises BusError."""
    # A full stream refuses, because a sender still has what it sends, and the oldest is what no reader has taken.
    config = StreamConfig(
        STREAM, subjects=[KEPT], discard=DiscardPolicy.NEW, max_bytes=store_bytes // 2, duplicate_window=SAME_ID_S
    )

    async def create() -> None:
        try:
            await bus.client.jetstream().stream_info(STREAM)
        except NotFoundError:
            await bus.client.jetstream().add_stream(config)

    bus.call(create(), about=STREAM)


async def read_stream(client: Client, stream: str, pattern: str, first: int, most: int) -> list[RawStreamMsg]:
    """The messages of a stream from a position on: so many, or fewer if they are large."""
    found, size_bytes = list[RawStreamMsg](), 0
    jetstream = client.jetstream(timeout=_ANSWER_S)
    while len(found) < most and size_bytes < QUEUED_BYTES:
        try:
            message = await jetstream.get_msg(stream, seq=first, subject=pattern, next=True)
        except NotFoundError:
            break
        found.append(message)
        size_bytes += len(message.data or b"")
        first = (message.seq or first) + 1
    return found
