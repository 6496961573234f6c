"""Messages between machine 0 and one other machine over the bus, each of them once and in the order they were sent in.

The bus loses what is sent while a server restarts, so a message has a number, stays with the sender until the other
side has acknowledged it, and is sent again. A channel belongs to one process on each side: a process that was started
again has another.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from prime_train.bus.base import Bus, BusError, BusMessage
from prime_train.supervise.machines import liveness
from prime_train.supervise.machines.protocol import Lost, Message, parse

SEND_LIMIT_S = 10.0
_WINDOW = 2**20  # characters that the other side has not acknowledged; what more is sent waits
_FIRST_AGAIN_S, _LAST_AGAIN_S = 1.0, 8.0  # without an acknowledgement
_TURN_S = 0.05


@dataclass(frozen=True, slots=True)
class LinkFrame:
    """What one message of the bus carries. `number` 0: no message, only a sign of life."""

    sender: str
    receiver: str
    number: int
    heard: int  # up to which number the sender has the messages of the other side
    message: Mapping[str, Any]
    is_last: bool


def read_frame(received: BusMessage) -> LinkFrame | None:
    """None for anything else, which is dropped."""
    body = received.body
    values = [body.get(name) for name in ("from", "to", "number", "heard", "message", "is_last")]
    if [type(value) for value in values] != [str, str, int, int, dict, bool]:
        return None
    found = LinkFrame(*values)  # type: ignore[arg-type]
    return found if found.sender and min(found.number, found.heard) >= 0 else None


@dataclass(slots=True)
class Channel:
    """`send` waits for at most SEND_LIMIT_S, and `receive` never waits. Both raise Lost.

    `subject`: on which the other side hears. `pull` gives the frames that arrive within so many seconds to `hear`.
    `find_gone`: since when the other side has no connection; None if it has one, or if that is not known.
    """

    bus: Bus
    subject: str
    pull: Callable[[float], None]
    peer: str = ""  # the channel of the other side; "" until it has answered
    find_gone: Callable[[], float | None] = lambda: None
    own: str = field(default_factory=lambda: secrets.token_hex(8))
    heard_s: float = field(default_factory=time.monotonic)
    is_closed: bool = False
    _problem: str = ""
    _arrived: deque[Mapping[str, Any]] = field(default_factory=deque)
    _received: int = 0  # the number of the newest message that has arrived in order
    _owes: bool = False  # an acknowledgement
    _sent: int = 0
    _unheard: deque[tuple[int, Message, int]] = field(default_factory=deque)
    _unheard_size: int = 0  # in characters
    _sent_s: float = field(default_factory=time.monotonic)
    _again_s: float = 0.0
    _pause_s: float = _FIRST_AGAIN_S

    def send(self, message: Message) -> None:
        if self._problem:
            raise Lost(self._problem)
        plain = {name: _as_text(value) if isinstance(value, str) else value for name, value in message.items()}
        self._sent += 1
        size = sum(len(str(value)) for value in plain.values())
        self._unheard.append((self._sent, plain, size))
        self._unheard_size += size
        if len(self._unheard) == 1:
            self._wait_again(_FIRST_AGAIN_S)
        self._publish(self._sent, plain)
        until_s = time.monotonic() + SEND_LIMIT_S
        while self._unheard_size > _WINDOW and len(self._unheard) > 1:
            self.pull(_TURN_S)
            self._keep_up()
            if time.monotonic() > until_s:
                raise Lost(f"it has taken nothing for {SEND_LIMIT_S:.0f} s")

    def receive(self, most: int = 2**20) -> list[Message]:
        """The first messages that have arrived. Also sends what is due, and checks the other side's signs of life."""
        self.pull(0.0)
        found = [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]
        if not found:
            self._keep_up()
        elif self._owes:
            self._publish(0, {})
        return [parse(message) for message in found]

    def hear(self, frame: LinkFrame) -> None:
        """Take a frame that is for this channel."""
        if self.peer and frame.sender != self.peer:
            self._problem = self._problem or "another process answers in its place"
            return
        self.peer = frame.sender
        self.heard_s = time.monotonic()
        while self._unheard and self._unheard[0][0] <= frame.heard:
            self._unheard_size -= self._unheard.popleft()[2]
            self._wait_again(_FIRST_AGAIN_S)
        if frame.number:
            self._owes = True
            if frame.number == self._received + 1:
                self._received += 1
                self._arrived.append(frame.message)
        if frame.is_last:
            self._problem = self._problem or "it closed the connection"

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_s

    @property
    def is_delivered(self) -> bool:
        """Whether the other side has all that was sent."""
        return not self._unheard

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._publish(0, {}, is_last=True)

    def _keep_up(self) -> None:
        now_s = time.monotonic()
        problem = self._problem or liveness.judge_link(now_s, self.heard_s, self.find_gone())
        if problem:
            self._problem = problem
            raise Lost(problem)
        if self._unheard and now_s > self._again_s:
            self._wait_again(min(2 * self._pause_s, _LAST_AGAIN_S))
            for number, message, _ in list(self._unheard):
                self._publish(number, message)
        elif self._owes or now_s - self._sent_s > liveness.ALIVE_S:
            self._publish(0, {})

    def _wait_again(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._again_s = time.monotonic() + pause_s

    def _publish(self, number: int, message: Message, *, is_last: bool = False) -> None:
        body = {"from": self.own, "to": self.peer, "number": number, "heard": self._received}
        self._sent_s, self._owes = time.monotonic(), False
        with suppress(BusError):  # it is sent again
            self.bus.publish(self.subject, {**body, "message": message, "is_last": is_last}, f"{self.own}:{number}")


def _as_text(value: str) -> str:
    """JSON in UTF-8 holds no half of a character."""
    return value.encode(errors="replace").decode()
