"""A machine that a test plays: its side of a channel, on a bus in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prime_train.bus.base import Bus
from prime_train.supervise.machines.channel import Channel, read_frame
from prime_train.supervise.machines.protocol import Message, join, name_command, name_report
from tests.unit.cli.commands import wait_until


class PlayedMachine:
    """`turn`: what machine 0 does meanwhile."""

    def __init__(self, bus: Bus, rank: int, turn: Callable[[], object]) -> None:
        self.bus = bus
        self.rank = rank
        self._turn = turn
        self._commands = bus.subscribe(name_command(rank))
        self.channel = Channel(bus, name_report(rank), self._pull)

    def _pull(self, limit_s: float) -> None:
        for received in self._commands.take(limit_s):
            frame = read_frame(received)
            if frame is not None and frame.receiver == self.channel.own:
                self.channel.hear(frame)

    def join(self, config: str = "config") -> PlayedMachine:
        self.channel.send(join(config))
        self._turn()
        return self

    def send(self, **message: object) -> None:
        self.channel.send(dict(message))
        self._turn()

    def publish(self, body: Mapping[str, Any]) -> None:
        """A message of the bus that is not made by a channel."""
        self.bus.publish(name_report(self.rank), body, "x")
        self._turn()

    def take_one(self) -> Message:
        """The next message of machine 0. Raises Lost."""
        found: list[Message] = []

        def is_there() -> bool:
            self._turn()
            found.extend(self.channel.receive(most=1))
            return bool(found)

        wait_until(is_there)
        return found[0]
