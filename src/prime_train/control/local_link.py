"""Connects a controller with the bus in a folder of this machine. Needs no package."""

from __future__ import annotations

from prime_train.bus.base import Bus
from prime_train.bus.fleet_store import FleetReader, FleetStore
from prime_train.supervise.core.event_text import describe


class LocalLink:
    """The folder is always there, so there is nothing to look after."""

    def __init__(self, bus: Bus, *, reads_only: bool = False) -> None:
        self.bus = bus
        self._reads_only = reads_only

    def keep(self) -> str:
        return ""

    def open(self, now_s: float) -> FleetStore | FleetReader:
        return FleetReader(self.bus) if self._reads_only else FleetStore(self.bus, now_s, describe)

    def take_remarks(self) -> list[str]:
        return []

    def close(self) -> None:
        self.bus.close()
