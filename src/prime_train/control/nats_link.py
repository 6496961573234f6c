"""Connects a controller with a NATS server: one that it starts and looks after, or one that runs already.

The link outlives every loss: the server is started again, and the client connects again by itself.
"""

from __future__ import annotations

import math
import time

from prime_train.bus.base import Bus
from prime_train.bus.credentials import Credentials
from prime_train.bus.fleet_store import FleetReader, FleetStore
from prime_train.bus.nats import NatsBus
from prime_train.bus.nats_server import NatsServer
from prime_train.bus.nats_stream import create_stream
from prime_train.supervise.core.event_text import describe

CLIENT = "controller"  # how a server lists it
_LOOK_S = 1.0  # between two looks at the server
_CONNECTED_S = 0.25


class NatsLink:
    """A server, which this link looks after if it is given one."""

    def __init__(self, credentials: Credentials, server: NatsServer | None = None, *, reads_only: bool = False) -> None:
        self._address = credentials.address
        self._server = server
        self._reads_only = reads_only
        self._looked_s = -math.inf
        self._bus = NatsBus(credentials, CLIENT)
        self._why = ""

    @property
    def bus(self) -> Bus:
        return self._bus

    def wait_connected(self, timeout_s: float) -> str:
        """Why there is no connection after the time; "" if there is one."""
        if self._bus.wait_connected(timeout_s):
            return ""
        self._why = next(reversed(self._bus.take_problems()), self._why)
        return self._why or "no connection yet"

    def keep(self) -> str:
        now_s = time.monotonic()
        if self._server is not None and now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._server.keep()
            self._server.refresh()
        why = self.wait_connected(_CONNECTED_S)
        return why and f"the bus server at {self._address} is not reached, and is tried again: {why}"

    def open(self, now_s: float) -> FleetStore | FleetReader:
        if self._reads_only:
            return FleetReader(self._bus)
        connection = self._bus.connection
        create_stream(connection) if self._server is None else self._server.create_stream(connection)
        return FleetStore(self._bus, now_s, describe)

    def take_remarks(self) -> list[str]:
        return [] if self._server is None else self._server.take_refusals()

    def close(self) -> None:
        self._bus.close()
        if self._server is not None:
            self._server.close()
