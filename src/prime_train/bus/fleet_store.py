"""The controller's side of the bus: hears all agents, and keeps what it knows of them in keys of the bus.

A controller that is killed comes back with all of it. What events change is written before they are acknowledged, so
they come again if it is killed in between, and the positions in the document drop them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from prime_train.bus.base import KEPT, Bus, BusError, BusMessage, RevisionConflict
from prime_train.bus.fleet import EMPTY, decide, fold_message, key_of
from prime_train.bus.fleet_events import Describe, Document, keep_quiet

BUCKET = "pt_fleet"
READER = "controller"
BEATS = "pt.*.r.*.hb"
_SAVE_BEATS_S = 30.0  # how old a heartbeat may be in the keys
_TRIES = 5


class FleetStore:
    """`documents`: what is known of each job on each machine, by "JOB.MACHINE". One controller at a time."""

    def __init__(self, bus: Bus, now_s: float, describe: Describe = keep_quiet) -> None:
        """`describe`: the line that an event has among the entries. Raises BusError where the keys cannot be read."""
        self._describe = describe
        self._values = bus.kv(BUCKET)
        self.documents: dict[str, Document] = {}
        self.listening_s = now_s
        self._life = os.urandom(4).hex()
        self.problems: list[str] = []
        self._revisions: dict[str, int] = {}
        for entry in self._values.list_entries():
            if entry.value is not None:
                self.documents[entry.key], self._revisions[entry.key] = entry.value, entry.revision
        self._bus = bus
        self._queue = bus.subscribe(KEPT, READER)
        self._beats = bus.subscribe(BEATS)
        self._unsaved: set[str] = set()
        self._save_beats_s = now_s + _SAVE_BEATS_S

    def turn(self, timeout_s: float, now_s: float) -> set[str]:
        """Take what arrived. Returns the keys whose documents changed.

        Raises RevisionConflict where another controller writes the same keys, and another BusError where the bus does
        not answer or its store is full: then the same messages come again.
        """
        changed = self._hear_beats(now_s)
        if messages := self._queue.take(timeout_s):
            before = dict(self.documents)
            by_event = {key for message in messages if (key := self._fold(message, now_s))}
            try:
                for key in by_event:
                    self._save(key)
                self._queue.acknowledge()
            except BusError:
                # The queue gives these messages again, and they must meet the documents from before them.
                self.documents = before
                self._queue.close()
                self._queue = self._bus.subscribe(KEPT, READER)
                raise
            changed |= by_event
        if now_s >= self._save_beats_s:
            self._save_beats_s = now_s + _SAVE_BEATS_S
            for key in sorted(self._unsaved):
                self._save(key)
        return changed

    def change(self, key: str, fields: Mapping[str, Any]) -> None:
        """Set what the controller decides for a job on a machine: a plan, a chosen checkpoint. Raises BusError."""
        before = self.documents.get(key, EMPTY)
        self.documents[key] = {**before, "decided": {**before["decided"], **fields}}
        try:
            self._save(key)
        except BusError:
            self.documents[key] = before
            raise

    def decide(self, key: str, decision: Mapping[str, Any]) -> None:
        """Keep a command that the controller gave, and later the same one with its answer. Raises BusError."""
        self.change(key, decide(self.documents.get(key, EMPTY), decision)["decided"])

    def forget(self, key: str) -> None:
        """Delete a machine that was drained. It comes back if its agent speaks again."""
        self._values.delete(key)
        self.documents.pop(key, None)
        self._revisions.pop(key, None)
        self._unsaved.discard(key)

    def close(self) -> None:
        self._queue.close()
        self._beats.close()

    def _hear_beats(self, now_s: float) -> set[str]:
        """Fold the heartbeats. What only they have and what lasts is saved in this turn: no later one may come."""
        changed = set()
        for message in self._beats.take(0):
            before = self.documents.get(key_of(message.subject) or "", EMPTY)
            if key := self._fold(message, now_s):
                changed.add(key)
                if _find_lasting(self.documents[key]) != _find_lasting(before):
                    self._save_beats_s = now_s
        self._unsaved |= changed
        return changed

    def _fold(self, message: BusMessage, now_s: float) -> str | None:
        key = key_of(message.subject)
        if key is not None:
            self.documents[key] = fold_message(self.documents.get(key, EMPTY), message, now_s, self._describe)
        return key

    def _save(self, key: str) -> None:
        """Write a document over the revision that this controller knows. Raises BusError."""
        for _ in range(_TRIES):
            document = {**self.documents[key], "by": self._life}
            try:
                self._revisions[key] = self._values.update(key, document, self._revisions.get(key, 0))
                self._unsaved.discard(key)
                return
            except RevisionConflict:
                # A write of this controller, whose outcome was not known, may be the one that is there.
                found = self._values.get(key)
                if found is None or found.value is None or found.value.get("by") != self._life:
                    raise
                self._revisions[key] = found.revision
            except ValueError as error:  # an agent that sends too much loses its own document, and no other one
                self.problems.append(f"{key}: {error}")
                self.documents[key] = {**EMPTY, "decided": self.documents[key]["decided"]}
        raise RevisionConflict(f"{key} changed {_TRIES} times while it was written")


def _find_lasting(document: Document) -> tuple[Any, Any]:
    """The settings in force, and the state, which may be an end that only the agent saw."""
    return document.get("values"), document.get("beat", {}).get("state")
