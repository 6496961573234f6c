"""Machine 0's side of the bus: gives what arrives to the channel it belongs to, and finds the machines that join.

A machine can only send in one name, because the server of the bus lets it publish on no other subject. One
that was started again opens another channel, and machine 0 answers on the new one alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prime_train.bus.base import Bus, BusError, Subscription
from prime_train.core.machines import Machines, name_machine
from prime_train.supervise.machines.channel import Channel, LinkFrame, read_frame
from prime_train.supervise.machines.protocol import (
    Lost,
    Message,
    find_difference,
    find_own,
    find_rank,
    name_command,
    name_report,
)

if TYPE_CHECKING:
    from prime_train.bus.shared_server import SharedServer

_MOST_OLD = 1000  # channels that are over; what arrives late for one of them opens none


@dataclass(frozen=True, slots=True)
class Join:
    """A machine that wants to train. `problem`: why it may not; "" if it may."""

    rank: int
    channel: Channel
    problem: str


@dataclass(slots=True)
class _Link:
    rank: int
    channel: Channel
    has_joined: bool = False


class Post:
    """`config`: the hash of the config of machine 0. `find_left`: the users whose connection has ended since."""

    def __init__(self, machines: Machines, bus: Bus, config: str, find_left: Callable[[], list[str]] = list) -> None:
        self.machines = machines
        self._bus = bus
        self._config = config
        self._find_left = find_left
        self._reports: Subscription = bus.subscribe(name_report("*"))
        self._links: dict[str, _Link] = {}  # by the name that the machine gave its channel
        self._old: deque[str] = deque(maxlen=_MOST_OLD)
        self._gone_s: dict[int, float] = {}

    def pull(self, limit_s: float) -> None:
        """Hand out what has arrived. Waits for at most `limit_s` for the first."""
        for user in self._find_left():
            self._gone_s.setdefault(find_rank(name_report(user)), time.monotonic())
        for received in self._reports.take(limit_s):
            rank, frame = find_rank(received.subject), read_frame(received)
            if frame is not None and 0 < rank < self.machines.count:
                self._gone_s.pop(rank, None)
                self._give(rank, frame)

    def take_joins(self) -> list[Join]:
        """The joins that have arrived. A channel on which anything else comes first is closed."""
        self.pull(0.0)
        for name in [name for name, link in self._links.items() if link.channel.is_closed]:
            del self._links[name]
            self._old.append(name)
        waiting = [link for link in self._links.values() if not link.has_joined]
        return [found for link in waiting if (found := self._judge(link)) is not None]

    def is_gone(self, rank: int) -> bool:
        """Whether the server saw the connection of a machine end, and nothing has come from it since."""
        return rank in self._gone_s

    def close_joining(self) -> None:
        for link in self._links.values():
            if not link.has_joined:
                link.channel.close()

    def _give(self, rank: int, frame: LinkFrame) -> None:
        link = self._links.get(frame.sender)
        if link is None and not frame.receiver and frame.sender not in self._old:
            for other in [link for link in self._links.values() if link.rank == rank and not link.has_joined]:
                other.channel.close()  # at most one at a time, so that nothing is opened without a bound
            link = self._links[frame.sender] = _Link(rank, self._open(rank, frame.sender))
        if link is None:
            self._answer_stray(rank, frame)
        elif link.rank == rank and frame.receiver in ("", link.channel.own):
            link.channel.hear(frame)

    def _open(self, rank: int, sender: str) -> Channel:
        return Channel(self._bus, name_command(rank), self.pull, sender, lambda: self._gone_s.get(rank))

    def _answer_stray(self, rank: int, frame: LinkFrame) -> None:
        """A machine on a channel of an earlier attempt learns that it has ended."""
        if not frame.is_last:
            with suppress(BusError):  # it sends again
                Channel(self._bus, name_command(rank), self.pull, frame.sender).close()

    def _judge(self, link: _Link) -> Join | None:
        try:
            messages: list[Message] = link.channel.receive(most=1)
        except Lost:  # it has left, or sent what is no message
            link.channel.close()
            return None
        if not messages:
            return None
        link.has_joined = True
        if messages[0]["kind"] != "join":
            link.channel.close()
            return None
        return Join(link.rank, link.channel, find_difference(messages[0], self._config))


@contextmanager
def open_post(
    machines: Machines, secret: str, config: str, note: Callable[[str], None]
) -> Iterator[tuple[Post, SharedServer]]:
    """The bus of machine 0 and the server, which the caller keeps. `note` gets a line for what the server refuses.

    Call it from the main thread. Raises UserError.
    """
    from prime_train.bus.shared_server import Departures, SharedServer  # here, because they need an extra

    users = [name_machine(rank) for rank in range(1, machines.count)]
    server = SharedServer(secret, users, find_own(machines), machines.port, note)
    server.start()
    try:
        bus = server.open_bus()
        try:
            yield Post(machines, bus, config, Departures(bus).take), server
        finally:
            bus.close()
    finally:
        server.close()
