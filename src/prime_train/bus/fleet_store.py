"""The controller's side of the bus: hears all agents, and keeps what it knows of them in keys of the bus.

A controller that is killed comes back with all of it. What events change is written before they are acknowledged, so
they come again if it is killed in between, and the positions in the document drop them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Any

from prime_train.bus.base import KEPT, Bus, BusError, BusMessage, Entry, KeyValues, RevisionConflict
from prime_train.bus.fleet import EMPTY, decide, fold_message, key_of
from prime_train.bus.fleet_events import Describe, Document, keep_quiet
from prime_train.bus.fleet_evidence import EvidenceStore, is_evidence
from prime_train.bus.fleet_traces import TraceStore, is_trace

BUCKET = "pt_fleet"
DRAINED = "pt_drained"
READER = "controller"
BEATS = "pt.*.r.*.hb"
MOST_JOBS = 200  # of one machine: its credentials allow any name for a job
_SAVE_BEATS_S = 30.0  # how old a heartbeat may be in the keys
_TRIES = 5
_PROBLEMS_KEPT = 20


class FleetStore:
    """`documents`: what is known of each job on each machine, by "JOB.MACHINE". One controller at a time.

    `drained`: the same of machines that a person took away. They are in another bucket until they are returned.
    """

    def __init__(self, bus: Bus, now_s: float, describe: Describe = keep_quiet) -> None:
        """`describe`: the line that an event has among the entries. Raises BusError where the keys cannot be read."""
        self._describe = describe
        self._values, self._drained_values = bus.kv(BUCKET), bus.kv(DRAINED)
        self._evidence, self._traces = EvidenceStore(bus), TraceStore(bus)
        self.documents: dict[str, Document] = {}
        self.drained: dict[str, Document] = {}
        self.listening_s = now_s
        self._life = os.urandom(4).hex()
        self._problems: deque[str] = deque(maxlen=_PROBLEMS_KEPT)
        self._revisions: dict[str, int] = {}
        for entry in self._values.list_entries():
            self._load(self.documents, entry)
        for entry in self._drained_values.list_entries():
            # A controller that was killed between two writes left it in both.
            if self.documents.pop(entry.key, None) is not None:
                self._values.delete(entry.key)
            self._load(self.drained, entry)
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
            before = self.documents, self.drained
            self.documents, self.drained = dict(self.documents), dict(self.drained)
            try:
                by_event = {key for message in messages if (key := self._fold(message, now_s))}
                for key in by_event & (self.documents.keys() | self.drained.keys()):
                    self._save(key)
                self._queue.acknowledge()
            except BusError:
                # The queue gives these messages again, and they must meet the documents from before them.
                self.documents, self.drained = before
                self._queue.close()
                self._queue = self._bus.subscribe(KEPT, READER)
                raise
            changed |= by_event
        if now_s >= self._save_beats_s:
            self._save_beats_s = now_s + _SAVE_BEATS_S
            for key in sorted(self._unsaved):
                self._save(key)
        return changed

    def take_problems(self) -> list[str]:
        """What was left out since the last call, and why."""
        found = list(self._problems)
        self._problems.clear()
        return found

    def change(self, key: str, fields: Mapping[str, Any]) -> None:
        """Set what the controller decides for a job on a machine: a plan, a chosen checkpoint. Raises BusError."""
        home = self._home(key)
        before = home.get(key, EMPTY)
        home[key] = {**before, "decided": {**before["decided"], **fields}}
        try:
            self._save(key)
        except BusError:
            home[key] = before
            raise

    def decide(self, key: str, decision: Mapping[str, Any]) -> None:
        """Keep a command that the controller gave, and later the same one with its answer. Raises BusError."""
        self.change(key, decide(self._home(key).get(key, EMPTY), decision)["decided"])

    def drain(self, key: str) -> None:
        """Take a job on a machine out of the map and its keys, until it is returned. Raises BusError."""
        self._move(key, self.documents, self.drained, self._values)

    def bring_back(self, key: str) -> None:
        """Return what was drained, with everything that its agent sent meanwhile. Raises BusError."""
        self._move(key, self.drained, self.documents, self._drained_values)

    def _move(self, key: str, source: dict[str, Document], target: dict[str, Document], values: KeyValues) -> None:
        if key in source:
            revision = self._revisions.pop(key, 0)
            target[key] = source.pop(key)
            try:
                self._save(key)
            except BusError:
                source[key], self._revisions[key] = target.pop(key), revision
                raise
        values.delete(key)  # also where an earlier call was interrupted before this

    def forget(self, key: str) -> None:
        """Delete what is known of a job on a machine. It comes back if its agent speaks again. Raises BusError."""
        home, values = self._home(key), self._bucket(key)
        self._forget_objects(key, home.get(key, EMPTY))
        values.delete(key)
        home.pop(key, None)
        self._revisions.pop(key, None)
        self._unsaved.discard(key)

    def _forget_objects(self, key: str, document: Document) -> None:
        self._evidence.forget(key, document)
        self._traces.forget(key, document)

    def close(self) -> None:
        self._queue.close()
        self._beats.close()

    def _home(self, key: str) -> dict[str, Document]:
        return self.drained if key in self.drained else self.documents

    def _bucket(self, key: str) -> KeyValues:
        return self._drained_values if key in self.drained else self._values

    def _load(self, documents: dict[str, Document], entry: Entry) -> None:
        if entry.value is not None:
            documents[entry.key], self._revisions[entry.key] = entry.value, entry.revision

    def _hear_beats(self, now_s: float) -> set[str]:
        """Fold the heartbeats. What only they have and what lasts is saved in this turn: no later one may come."""
        changed = set()
        for message in self._beats.take(0):
            named = key_of(message.subject) or ""
            before = self._home(named).get(named, EMPTY)
            if key := self._fold(message, now_s):
                changed.add(key)
                if _find_lasting(self._home(key)[key]) != _find_lasting(before):
                    self._save_beats_s = now_s
        self._unsaved |= changed
        return changed

    def _fold(self, message: BusMessage, now_s: float) -> str | None:
        key = key_of(message.subject)
        if key is None:
            return None
        home = self._home(key)
        if key not in home:
            self._forget_oldest(key)
        if is_evidence(message) or is_trace(message):
            home[key] = {**EMPTY, **home.get(key, EMPTY)}
            keep = self._evidence.keep if is_evidence(message) else self._traces.keep
            if problem := keep(home, key, message, now_s):
                self._problems.append(problem)
        else:
            home[key] = fold_message(home.get(key, EMPTY), message, now_s, self._describe)
        return key

    def _forget_oldest(self, key: str) -> None:
        """Forget one job of a machine that has reported the most that are kept."""
        machine = key.rpartition(".")[2]
        jobs = [one for one in self.documents if one.rpartition(".")[2] == machine]
        if len(jobs) >= MOST_JOBS:
            oldest = min(jobs, key=lambda one: self.documents[one].get("heard_s", 0.0))
            self._problems.append(f"{machine} has reported {MOST_JOBS} runs: what was known of {oldest} is forgotten")
            self.forget(oldest)

    def _save(self, key: str) -> None:
        """Write a document over the revision that this controller knows. Raises BusError."""
        home, values = self._home(key), self._bucket(key)
        for _ in range(_TRIES):
            document = {**home[key], "by": self._life}
            try:
                self._revisions[key] = values.update(key, document, self._revisions.get(key, 0))
                self._unsaved.discard(key)
                return
            except RevisionConflict:
                # A write of this controller, whose outcome was not known, may be the one that is there.
                found = values.get(key)
                if found is None or found.value is None or found.value.get("by") != self._life:
                    raise
                self._revisions[key] = found.revision
            except ValueError as error:  # an agent that sends too much loses its own document, and no other one
                self._problems.append(f"{key}: {error}")
                self._forget_objects(key, home[key])
                home[key] = {**EMPTY, "decided": home[key]["decided"]}
        raise RevisionConflict(f"{key} changed {_TRIES} times while it was written")


class FleetReader:
    """What a controller knows, read beside it. Acknowledges and writes nothing.

    `documents` as in FleetStore. A controller has to run, because without one no event reaches the keys.
    """

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


def _find_lasting(document: Document) -> tuple[Any, Any]:
    """The settings in force, and the state, which may be an end that only the agent saw."""
    return document.get("values"), document.get("beat", {}).get("state")
