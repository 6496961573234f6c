"""Reads what a controller knows about all machines, beside that controller. Acknowledges and writes nothing."""

from __future__ import annotations

from prime_train.bus.base import Bus
from prime_train.bus.fleet import EMPTY, fold_message, key_of
from prime_train.bus.fleet_events import Document
from prime_train.bus.fleet_store import BEATS, BUCKET


class FleetReader:
    """`documents` as in FleetStore. A controller has to run, because without one no event reaches the keys."""

    def __init__(self, bus: Bus) -> None:
        """Raises BusError where the keys cannot be read."""
        self._watch = bus.kv(BUCKET).watch()
        self._beats = bus.subscribe(BEATS)
        self.documents: dict[str, Document] = {}
        self.drained: dict[str, Document] = {}  # only the controller shows these
        self.listening_s = 0.0  # the keys have when the controller heard a machine

    def turn(self, timeout_s: float, now_s: float) -> set[str]:
        """Take what changed. Returns the keys whose documents changed."""
        changed = set()
        for entry in self._watch.take(timeout_s):
            heard_s = self.documents.get(entry.key, EMPTY).get("heard_s", 0.0)
            self.documents.pop(entry.key, None)
            if entry.value is not None:  # a heartbeat that came here is later than the one in the key
                latest_s = max(heard_s, entry.value.get("heard_s", 0.0))
                self.documents[entry.key] = {**entry.value, "heard_s": latest_s}
            changed.add(entry.key)
        for message in self._beats.take(0):
            key = key_of(message.subject)
            if key is not None and key in self.documents:
                self.documents[key] = fold_message(self.documents[key], message, now_s)
                changed.add(key)
        return changed

    def take_problems(self) -> list[str]:
        return []

    def close(self) -> None:
        self._watch.close()
        self._beats.close()
