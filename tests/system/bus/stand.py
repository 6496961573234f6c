"""A bus of each kind for tests, with clients in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prime_train.bus.base import Bus, BusMessage, Subscription
from prime_train.bus.credentials import Credentials
from prime_train.bus.local import LocalBus
from prime_train.bus.nats import NatsBus
from prime_train.bus.nats_server import NatsServer
from prime_train.bus.server_folder import CONTROLLER

KINDS = ("local", "nats")
LIMIT_S = 60.0
EVENTS = "pt.j.r.m1.ev"  # kept
BEATS = "pt.j.r.m1.hb"  # passes by
COMMANDS = "pt.j.cmd.m1"


class LocalStand:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def client(self, _name: str = CONTROLLER) -> Bus:
        """A connected client."""
        return LocalBus(self.folder)

    def line(self, _name: str = CONTROLLER) -> str:
        """What `open_line` opens in another process."""
        return f"local {self.folder}"


class NatsStand:
    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._clients: list[Bus] = []

    def client(self, name: str = CONTROLLER) -> NatsBus:
        return self.open(self.server.credentials(name), name)

    def open(self, credentials: Credentials, name: str) -> NatsBus:
        bus = NatsBus(credentials, name)
        self._clients.append(bus)
        assert bus.wait_connected(LIMIT_S)
        return bus

    def line(self, name: str = CONTROLLER) -> str:
        who = self.server.credentials(name)
        return f"nats {who.address} {self.folder / 'credentials' / name}.json"

    def close(self) -> None:
        for bus in self._clients:
            bus.close()


@contextmanager
def standing(kind: str, folder: Path) -> Iterator[LocalStand | NatsStand]:
    if kind == "local":
        yield LocalStand(folder)
        return
    with standing_nats(folder) as stand:
        yield stand


@contextmanager
def standing_nats(folder: Path, store_bytes: int = 2**28) -> Iterator[NatsStand]:
    server = NatsServer(folder, ["m1", "m2"], store_bytes=store_bytes)
    server.start()
    stand = NatsStand(server, folder)
    try:
        server.create_stream(stand.client().connection)
        yield stand
    finally:
        stand.close()
        server.close()


def open_line(line: str) -> Bus:
    from prime_train.bus.credentials import read_credentials

    kind, *words = line.split()
    if kind == "local":
        return LocalBus(Path(words[0]))
    bus = NatsBus(read_credentials(words[0], words[1], None, {}), "test")
    assert bus.wait_connected(LIMIT_S)
    return bus


def take(subscription: Subscription, count: int) -> list[BusMessage]:
    """The next `count` messages, or fewer after the limit."""
    found: list[BusMessage] = []
    until_s = time.monotonic() + LIMIT_S
    while len(found) < count and time.monotonic() < until_s:
        found += subscription.take(0.2)
    return found


def until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)
