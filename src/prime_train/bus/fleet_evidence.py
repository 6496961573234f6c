"""Keeps what explains failed attempts on other machines as large objects of the bus, for the controller alone.

An agent sends it as one kept message, because it may use nothing of the object store. The message is acknowledged only
after the object is written, so a controller that is killed in between gets it again, and writes the same object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prime_train.bus.base import Bus, BusError, BusMessage, BusRefused, Objects, as_json
from prime_train.bus.fleet_events import Document
from prime_train.core.outside import parse_json
from prime_train.events.bounds import MOST_STEPS

OBJECTS = "pt_evidence"
KEPT_EACH = 50  # failed attempts of a run
_MOST_FILES = 64
_MOST_EVICTED = 64  # for one that is written
Files = list[dict[str, str]]  # name and text of each


class EvidenceStore:
    """Which attempts have evidence is in the document of each run: `kept`, with the time when it came."""

    def __init__(self, bus: Bus) -> None:
        self._objects = bus.objects(OBJECTS)

    def keep(self, documents: dict[str, Document], key: str, message: BusMessage, now_s: float) -> str:
        """Writes an object, and changes the documents. Returns why it is not kept; "" if it is.

        Raises UnknownOutcome: the same message is to be kept later.
        """
        attempt, files = message.body.get("attempt"), _read_files(message.body.get("files"))
        if type(attempt) is not int or not 0 < attempt <= MOST_STEPS:
            documents[key] = {**documents[key], "damaged": documents[key].get("damaged", 0) + 1}
            return ""
        try:
            self._make_room(documents, key, attempt)
            self._put(documents, name_evidence(key, attempt), as_json({"files": files}))
        except BusRefused as error:  # events count for more than the texts beside them
            return f"the evidence of {key}, attempt {attempt}, is not kept: {error}"
        documents[key] = {**documents[key], "kept": documents[key]["kept"] | {str(attempt): now_s}}
        return ""

    def _make_room(self, documents: dict[str, Document], key: str, attempt: int) -> None:
        while len(kept := documents[key]["kept"].keys() - {str(attempt)}) >= KEPT_EACH:
            self._delete(documents, key, min(kept, key=int))

    def _put(self, documents: dict[str, Document], name: str, content: bytes) -> None:
        def evict() -> bool:
            listed = [(of, one, at_s) for of, each in documents.items() for one, at_s in each.get("kept", {}).items()]
            if listed:
                self._delete(documents, *find_oldest(listed))
            return bool(listed)

        put_evicting(self._objects, name, content, evict)

    def _delete(self, documents: dict[str, Document], key: str, attempt: str) -> None:
        self._objects.delete(name_evidence(key, int(attempt)))
        rest = {one: at_s for one, at_s in documents[key]["kept"].items() if one != attempt}
        documents[key] = {**documents[key], "kept": rest}

    def forget(self, key: str, document: Document) -> None:
        for attempt in document.get("kept", {}):
            self._objects.delete(name_evidence(key, int(attempt)))


def put_evicting(objects: Objects, name: str, content: bytes, evict: Callable[[], bool]) -> None:
    """Write an object. `evict` deletes another one where there is no room, and returns whether there was one."""
    for _ in range(_MOST_EVICTED):
        try:
            return objects.put(name, content)
        except BusRefused:
            if not evict():
                raise
    raise BusRefused("there is no room")


def find_oldest(listed: Sequence[tuple[str, str, float]]) -> tuple[str, str]:
    """What goes first, of (key of a document, name, time). `listed` is not empty.

    The machine with the most loses its oldest one, so that no agent takes the room that another one needs.
    """
    machines = Counter(_machine(key) for key, _, _ in listed)
    most = max(machines, key=lambda name: machines[name])
    key, name, _ = min((one for one in listed if _machine(one[0]) == most), key=lambda one: one[2])
    return key, name


def _machine(key: str) -> str:
    return key.rpartition(".")[2]


def is_evidence(message: BusMessage) -> bool:
    return "files" in message.body and message.subject.endswith(".ev")


def name_evidence(key: str, attempt: int) -> str:
    return f"{key}.{attempt}"


def read_kept(bus: Bus, key: str, attempt: int) -> Files:
    """What was kept of an attempt; nothing where it is not there. May be called beside the store. Raises BusError."""
    content = bus.objects(OBJECTS).get(name_evidence(key, attempt))
    if content is None:
        return []
    try:
        found = parse_json(content)
        return _read_files(found.get("files") if isinstance(found, Mapping) else None)
    except ValueError as error:
        raise BusError(f"the evidence of {key} cannot be read: {error}") from error


def _read_files(found: Any) -> Files:
    """The files in a message from an agent; what is none of them is left out."""
    listed = found[:_MOST_FILES] if isinstance(found, list) else []
    pairs = [(one.get("name"), one.get("text")) for one in listed if isinstance(one, dict)]
    return [
        {"name": name[:100], "text": text} for name, text in pairs if isinstance(name, str) and isinstance(text, str)
    ]
