"""A bus over a NATS server. Its calls are those of a thread; the connection is a thread's event loop.

It connects, and connects again, for ever: 0.25 to 5 s between two tries, with jitter. While there is no connection each
call fails at once and nothing is buffered, so that no old message arrives later than a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from concurrent.futures import TimeoutError as LateError
from typing import Any, TypeVar

from nats.aio.client import Client, Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.errors import APIError, NoStreamResponseError

from prime_train.bus.base import (
    KEPT,
    OBJECTS_BYTES,
    QUEUED_BYTES,
    BusError,
    BusMessage,
    BusRefused,
    UnknownOutcome,
    check_name,
    check_pattern,
    check_subject,
    decode_message,
    encode_message,
    matches,
)
from prime_train.bus.credentials import Credentials
from prime_train.bus.nats_kv import NatsKeyValues
from prime_train.bus.nats_objects import NatsObjects
from prime_train.bus.nats_stream import STREAM, read_stream

Value = TypeVar("Value")
_ANSWER_S = 2.0
_CONNECT_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_PING_S, _PINGS = 2, 3  # a peer that vanished is noticed after 6 to 8 s
_MOST_PROBLEMS = 100
_LOOK_S = 0.5  # a kept message is looked for even if nothing announced it


class NatsBus:
    """`name`: of this client, as the server lists it. Returns at once; the first calls may find no connection yet."""

    def __init__(self, credentials: Credentials, name: str, longest_pause_s: float = _LONGEST_PAUSE_S) -> None:
        self._credentials = credentials
        self._name = name
        self._longest_pause_s = longest_pause_s  # between two tries to connect
        self._is_refused = False
        self._client: Client | None = None
        self._lives = 0  # connections so far
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._refused: deque[str] = deque(maxlen=_MOST_PROBLEMS)  # what the server did not permit during a call
        self._live: list[NatsSubscription] = []
        self._listening: asyncio.Task[None] | None = None  # held, because a loop drops a task that is not
        self._lock = threading.Lock()
        self._is_connected = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bus", daemon=True)
        self._closing: asyncio.Event = asyncio.Event()
        self._thread.start()

    # --- the verbs ----------------------------------------------------------------------------------

    def publish(self, subject: str, body: Mapping[str, Any], message_id: str) -> None:
        content = encode_message(body, message_id)
        if matches(KEPT, check_subject(subject)):
            self.call(self._store(subject, content, message_id), about=subject)
        else:
            self.call(self._pass_on(subject, content), about=subject)

    def subscribe(self, pattern: str, name: str = "") -> NatsSubscription | NatsQueue:
        check_pattern(pattern)
        if name:
            check_name(name)
            return NatsQueue(self, pattern)
        found = NatsSubscription(self, pattern)
        with self._lock:
            self._live.append(found)
        with contextlib.suppress(UnknownOutcome):  # it listens from the next connection on
            self.call(self._listen(found), about=pattern)
        return found

    def request(self, subject: str, body: Mapping[str, Any], message_id: str, timeout_s: float) -> BusMessage:
        content = encode_message(body, message_id)
        answer = self.call(self._ask(check_subject(subject), content, timeout_s), timeout_s + 1.0, about=subject)
        try:
            return decode_message(answer.subject, answer.data)
        except ValueError as error:
            raise BusRefused(f"the answer on {subject} is no message: {error}") from error

    def kv(self, bucket: str) -> NatsKeyValues:
        return NatsKeyValues(self, check_name(bucket))

    def objects(self, bucket: str, most_bytes: int = OBJECTS_BYTES) -> NatsObjects:
        return NatsObjects(self, check_name(bucket), most_bytes)

    def take_problems(self) -> list[str]:
        found = []
        while self._problems:
            found.append(self._problems.popleft())
        return found

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether there is a connection, at the latest after the time."""
        return self._is_connected.wait(timeout_s)

    @property
    def lives(self) -> int:
        """How many connections there were up to now."""
        return self._lives

    @property
    def is_refused(self) -> bool:
        """Whether the host of the server answered the last try to connect, and there is no server on its port."""
        return self._is_refused and not self._is_connected.is_set()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_ANSWER_S)

    # --- calls into the event loop ------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, Value], timeout_s: float = 2 * _ANSWER_S, about: str = "") -> Value:
        """The result of a coroutine on the connection. Raises UnknownOutcome or BusRefused."""
        if not self._is_connected.is_set() or not self._thread.is_alive():
            work.close()
            raise UnknownOutcome(f"there is no connection to {self._credentials.address}")
        self._refused.clear()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except (NoRespondersError, NoStreamResponseError) as error:
            raise UnknownOutcome(f"there is no listener on {about}") from error
        except APIError as error:
            raise BusRefused(f"the server refused {about}: {error.description or error}") from error
        except (LateError, TimeoutError) as error:
            future.cancel()
            if refusal := self._find_refusal(about):
                raise BusRefused(refusal) from error
            raise UnknownOutcome(f"no answer about {about} in time") from error
        except (NatsError, OSError) as error:
            raise UnknownOutcome(f"the connection failed during {about}: {_describe(error)}") from error

    def _find_refusal(self, about: str) -> str:
        """The server reports what it did not permit beside the call, which only times out."""
        subjects = (f'"{about.lower()}"', '"$js.api.')  # keys are reached through the JetStream API
        return next((text for text in self._refused if any(subject in text.lower() for subject in subjects)), "")

    @property
    def client(self) -> Client:
        if self._client is None:
            raise UnknownOutcome("there is no connection")
        return self._client

    async def _store(self, subject: str, content: bytes, message_id: str) -> None:
        # The message itself asks for the receipt: an agent may use nothing of the JetStream API.
        await self.client.jetstream().publish(
            subject, content, timeout=_ANSWER_S, stream=STREAM, headers={"Nats-Msg-Id": message_id}
        )

    async def _pass_on(self, subject: str, content: bytes) -> None:
        await self.client.publish(subject, content)

    async def _ask(self, subject: str, content: bytes, timeout_s: float) -> Msg:
        return await self.client.request(subject, content, timeout=timeout_s)

    async def _listen(self, subscription: NatsSubscription) -> None:
        subscription.source = await self.client.subscribe(
            subscription.pattern, cb=subscription.receive, pending_bytes_limit=QUEUED_BYTES
        )
        await self.client.flush(timeout=int(_ANSWER_S))  # the server knows it: what is published from here on arrives

    def forget(self, subscription: NatsSubscription) -> None:
        with self._lock, contextlib.suppress(ValueError):  # it was closed before
            self._live.remove(subscription)
        if subscription.source is not None and self._is_connected.is_set():
            with contextlib.suppress(BusError):
                self.call(subscription.source.unsubscribe(), about=subscription.pattern)

    # --- the connection -----------------------------------------------------------------------------

    def _run(self) -> None:
        # asyncio warns whenever a server with TLS ends a connection, and no program has set its log up: stderr has it.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._stay_connected())
        self._loop.close()

    async def _stay_connected(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            ended = asyncio.Event()
            try:
                await asyncio.wait_for(self._connect(ended), _CONNECT_S)
                pause_s = _FIRST_PAUSE_S
                # A client that reconnects keeps its subscriptions; one that is refused ends for good.
                waits = [asyncio.create_task(event.wait()) for event in (ended, self._closing)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            except Exception as error:  # any of them: without this thread nothing would be sent ever after
                self.note(f"{self._credentials.address}: {_describe(error)}")
            finally:
                await self._end_client()
            if not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), _with_jitter(pause_s))
                pause_s = min(2 * pause_s, self._longest_pause_s)

    async def _connect(self, ended: asyncio.Event) -> None:
        who, pause = self._credentials, _Pause(self._longest_pause_s)

        async def set_ended() -> None:
            ended.set()

        async def set_down() -> None:
            self._is_connected.clear()

        async def set_up() -> None:
            pause.next_s = _FIRST_PAUSE_S
            self._lives += 1
            self._is_refused = False
            self._is_connected.set()
            for subscription in self._list_live():
                if subscription.source is None:  # the connection was lost while it was made
                    self._listening = asyncio.create_task(self._listen(subscription))

        async def note(error: Exception) -> None:
            self._is_refused = isinstance(error, ConnectionRefusedError) or "[Errno 111]" in str(error)
            self.note(_describe(error))

        self._client = Client()
        await self._client.connect(
            who.address,
            name=self._name,
            user=who.user or None,
            password=who.password or None,
            tls=who.ssl_context(),
            tls_hostname=who.server_name or None,
            tls_handshake_first=bool(who.server_name),
            inbox_prefix=f"_INBOX_{who.user or 'anybody'}".encode(),
            error_cb=note,
            closed_cb=set_ended,
            disconnected_cb=set_down,
            reconnected_cb=set_up,
            reconnect_to_server_handler=pause.choose,
            reconnect_time_wait=1,  # between two tries of a first connection
            max_reconnect_attempts=-1,
            connect_timeout=int(_ANSWER_S),
            ping_interval=_PING_S,
            max_outstanding_pings=_PINGS,
            pending_size=0,
        )
        for subscription in self._list_live():
            await self._listen(subscription)
        await set_up()

    def _list_live(self) -> list[NatsSubscription]:
        with self._lock:
            return list(self._live)

    async def _end_client(self) -> None:
        self._is_connected.clear()
        for subscription in self._list_live():
            subscription.source = None
        if self._client is not None:
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                await asyncio.wait_for(self._client.close(), _ANSWER_S)

    def note(self, text: str) -> None:
        self._refused.append(text)
        if not self._problems or self._problems[-1] != text:
            self._problems.append(text)


class _Pause:
    """Waits longer before each try to reconnect."""

    def __init__(self, longest_s: float) -> None:
        self.next_s = _FIRST_PAUSE_S
        self._longest_s = longest_s

    def choose(self, servers: list[Server], _info: Mapping[str, Any]) -> tuple[Server, float]:
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, self._longest_s)
        return servers[0], _with_jitter(pause_s)


class NatsSubscription:
    """Messages that pass by. They are kept for `take` up to a limit, and then the oldest are dropped."""

    def __init__(self, bus: NatsBus, pattern: str) -> None:
        self.lost = 0
        self.rejected = 0
        self.pattern = pattern
        self.source: ClientSubscription | None = None
        self._bus = bus
        self._found: deque[tuple[BusMessage, int]] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()

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
        self._bus.forget(self)


class NatsQueue:
    """Kept messages, read by their position in the stream. What was acknowledged is deleted from it."""

    _MOST = 200  # of one call

    def __init__(self, bus: NatsBus, pattern: str) -> None:
        self.lost = 0
        self.rejected = 0
        self._bus = bus
        self._pattern = pattern
        self._next = 1
        self._lives = 0
        self._passing = bus.subscribe(pattern)  # wakes the reader

    def take(self, timeout_s: float) -> list[BusMessage]:
        until_s = time.monotonic() + timeout_s
        while True:
            found = self._read()
            left_s = until_s - time.monotonic()
            if found or left_s <= 0:
                return found
            self._passing.take(min(left_s, _LOOK_S))

    def _read(self) -> list[BusMessage]:
        lives = self._bus.lives
        if lives != self._lives:
            self._lives, self._next = lives, 1  # the server may have another store
        try:
            read = self._bus.call(
                read_stream(self._bus.client, STREAM, self._pattern, self._next, self._MOST), 60.0, STREAM
            )
        except BusError as error:  # the next call reads the same messages
            self._bus.note(str(error))
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
            self._bus.call(self._delete(self._next), about=STREAM)

    async def _delete(self, before: int) -> None:
        await self._bus.client.jetstream().purge_stream(STREAM, seq=before, subject=self._pattern)

    def close(self) -> None:
        self._passing.close()


def _with_jitter(pause_s: float) -> float:
    """Clients that lost one server at the same moment must not return at the same moment."""
    return pause_s * random.uniform(0.5, 1.0)


def _describe(error: BaseException) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
