"""The bus of a machine that follows: one connection to machine 0, which is made again whenever it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prime_train.bus.base import Subscription
from prime_train.core.machines import Machines, name_machine
from prime_train.supervise.machines.channel import Channel, read_frame
from prime_train.supervise.machines.protocol import name_command, name_report

if TYPE_CHECKING:
    from prime_train.bus.nats import NatsBus

_LONGEST_PAUSE_S = 0.5  # between two tries to connect
_OTHER_SECRET = "what answers on its port has not the secret of this run"


@dataclass(slots=True)
class Uplink:
    """`problem`: why there was no connection the last time, for the error of a machine 0 that never comes."""

    bus: NatsBus
    rank: int
    commands: Subscription
    problem: str = ""
    _channel: Channel | None = None
    _refused_since_s: float | None = None

    def open_channel(self) -> Channel | None:
        """A channel to machine 0; None while there is no connection."""
        for problem in self.bus.take_problems():
            self.problem = f"; the last time: {_OTHER_SECRET if 'certificate verify failed' in problem else problem}"
        if not self.bus.wait_connected(0.0):
            return None
        self._refused_since_s = None
        self._channel = Channel(self.bus, name_report(self.rank), self._pull, find_gone=self._find_gone)
        return self._channel

    def _pull(self, limit_s: float) -> None:
        for received in self.commands.take(limit_s):
            frame = read_frame(received)
            if frame is not None and self._channel is not None and frame.receiver == self._channel.own:
                self._channel.hear(frame)

    def _find_gone(self) -> float | None:
        """Since when the host of machine 0 answers without a server on that port."""
        if self.bus.wait_connected(0.0):
            self._refused_since_s = None
        elif self.bus.connection.is_refused and self._refused_since_s is None:
            self._refused_since_s = time.monotonic()
        return self._refused_since_s


@contextmanager
def open_uplink(machines: Machines, secret: str) -> Iterator[Uplink]:
    """Returns at once: machine 0 may come later, and so may the name server that has its address."""
    from prime_train.bus.nats import NatsBus  # here, because they need an extra
    from prime_train.bus.shared_secret import derive_credentials

    user = name_machine(machines.rank)
    bus = NatsBus(derive_credentials(secret, user, machines.addresses[0], machines.port), user, _LONGEST_PAUSE_S)
    try:
        yield Uplink(bus, machines.rank, bus.subscribe(name_command(machines.rank)))
    finally:
        bus.close()
