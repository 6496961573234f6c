"""Stays connected with a NATS server, in a thread with an event loop, and runs coroutines on the connection.

It connects, and connects again, for ever: 0.25 to 5 s between two tries, with jitter. While there is no connection each
call fails at once and nothing is buffered, so that no old message arrives later than a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from concurrent.futures import TimeoutError as LateError
from typing import Any, Protocol, TypeVar

from nats.aio.client import Client, Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.errors import APIError, NoStreamResponseError

from prime_train.bus.base import QUEUED_BYTES, BusError, BusRefused, UnknownOutcome
from prime_train.bus.credentials import Credentials

Value = TypeVar("Value")
ANSWER_S = 2.0
LONGEST_PAUSE_S = 5.0
_CONNECT_S = 5.0
_FIRST_PAUSE_S = 0.25
_PING_S, _PINGS = 2, 3  # a peer that vanished is noticed after 6 to 8 s
_MOST_PROBLEMS = 100


class Listener(Protocol):
    """What hears a pattern at the server, and hears it after each new connection too."""

    pattern: str
    source: ClientSubscription | None  # None: the server does not know it yet

    async def receive(self, message: Msg) -> None: ...


class NatsConnection:
    """`name`: of this client, as the server lists it. Returns at once; the first calls may find no connection yet."""

    def __init__(self, credentials: Credentials, name: str, longest_pause_s: float) -> None:
        """`longest_pause_s`: between two tries to connect."""
        self._credentials = credentials
        self._name = name
        self._longest_pause_s = longest_pause_s
        self._is_refused = False
        self._client: Client | None = None
        self._lives = 0  # connections so far
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._refused: deque[str] = deque(maxlen=_MOST_PROBLEMS)  # what the server did not permit during a call
        self._live: list[Listener] = []
        self._listening: asyncio.Task[None] | None = None  # held, because a loop drops a task that is not
        self._lock = threading.Lock()
        self._is_connected = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bus", daemon=True)
        self._closing: asyncio.Event = asyncio.Event()
        self._thread.start()

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

    @property
    def client(self) -> Client:
        if self._client is None:
            raise UnknownOutcome("there is no connection")
        return self._client

    def note(self, text: str) -> None:
        self._refused.append(text)
        if not self._problems or self._problems[-1] != text:
            self._problems.append(text)

    def take_problems(self) -> list[str]:
        found = []
        while self._problems:
            found.append(self._problems.popleft())
        return found

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(ANSWER_S)

    # --- calls into the event loop ------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, Value], timeout_s: float = 2 * ANSWER_S, about: str = "") -> Value:
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

    def listen(self, listener: Listener) -> None:
        """Hear a pattern from here on, or from the next connection on. Raises BusRefused."""
        with self._lock:
            self._live.append(listener)
        with contextlib.suppress(UnknownOutcome):
            self.call(self._listen(listener), about=listener.pattern)

    async def _listen(self, listener: Listener) -> None:
        listener.source = await self.client.subscribe(
            listener.pattern, cb=listener.receive, pending_bytes_limit=QUEUED_BYTES
        )
        await self.client.flush(timeout=int(ANSWER_S))  # the server knows it: what is published from here on arrives

    def forget(self, listener: Listener) -> None:
        with self._lock, contextlib.suppress(ValueError):  # it was closed before
            self._live.remove(listener)
        if listener.source is not None and self._is_connected.is_set():
            with contextlib.suppress(BusError):
                self.call(listener.source.unsubscribe(), about=listener.pattern)

    # --- the thread ---------------------------------------------------------------------------------

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
            for listener in self._list_live():
                if listener.source is None:  # the connection was lost while it was made
                    self._listening = asyncio.create_task(self._listen(listener))

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
            connect_timeout=int(ANSWER_S),
            ping_interval=_PING_S,
            max_outstanding_pings=_PINGS,
            pending_size=0,
        )
        for listener in self._list_live():
            await self._listen(listener)
        await set_up()

    def _list_live(self) -> list[Listener]:
        with self._lock:
            return list(self._live)

    async def _end_client(self) -> None:
        self._is_connected.clear()
        for listener in self._list_live():
            listener.source = None
        if self._client is not None:
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                await asyncio.wait_for(self._client.close(), ANSWER_S)


class _Pause:
    """Waits longer before each try to reconnect."""

    def __init__(self, longest_s: float) -> None:
        self.next_s = _FIRST_PAUSE_S
        self._longest_s = longest_s

    def choose(self, servers: list[Server], _info: Mapping[str, Any]) -> tuple[Server, float]:
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, self._longest_s)
        return servers[0], _with_jitter(pause_s)


def _with_jitter(pause_s: float) -> float:
    """Clients that lost one server at the same moment must not return at the same moment."""
    return pause_s * random.uniform(0.5, 1.0)


def _describe(error: BaseException) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
