"""Reads a stream of a NATS server by position, on a connection that another module keeps."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from nats.aio.client import Client
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

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


async def read_stream(client: Client, stream: str, pattern: str, first: int, most: int) -> list[RawStreamMsg]:
    """The messages of a stream from a position on."""
    found: list[RawStreamMsg] = []
    jetstream = client.jetstream(timeout=_ANSWER_S)
    while len(found) < most:
        try:
            message = await jetstream.get_msg(stream, seq=first, subject=pattern, next=True)
        except NotFoundError:
            break
        found.append(message)
        first = (message.seq or first) + 1
    return found
