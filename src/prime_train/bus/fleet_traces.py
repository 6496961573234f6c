"""Keeps profiler traces of runs on other machines as large objects of the bus, for the controller alone.

An agent sends a trace in parts, each as one kept message, because it may use nothing of the object store. A part is
acknowledged only after its object and the document are written, so a controller that is killed in between gets it
again, and writes the same object. Nothing here unpacks a trace: its bytes are those that the trainer wrote.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from prime_train.bus.base import Bus, BusError, BusMessage, BusRefused
from prime_train.bus.fleet_events import Document, cut
from prime_train.bus.fleet_evidence import find_oldest, put_evicting
from prime_train.events.bounds import LATEST_S

OBJECTS = "pt_traces"
TRACE_BYTES = 16 * 2**20  # one step of a deep model has 100 MB as text, and a twentieth of that packed
PART_BYTES = 2 * 2**20  # as base64 in JSON it fits into one message
TRACES_KEPT = 16  # of one run on one machine
TRACE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.trace\.json\.gz")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 2**50  # of a trace that is too large to be sent


@dataclass(frozen=True, slots=True)
class TracePart:
    """A part of a trace, by its number from 0. `note`: why the trace is not sent; then it has no content."""

    name: str
    size_bytes: int  # of the whole trace
    saved_s: float  # when the trainer wrote it, since the epoch
    digest: str = ""  # SHA-256 of the whole trace
    number: int = 0
    content: bytes = b""
    note: str = ""

    def to_body(self) -> dict[str, Any]:
        about = {"name": self.name, "size_bytes": self.size_bytes, "saved_s": self.saved_s, "digest": self.digest}
        about |= {"number": self.number, "note": self.note}
        return {"trace": about, "content": base64.b64encode(self.content).decode()}


def is_trace(message: BusMessage) -> bool:
    return "trace" in message.body and message.subject.endswith(".ev")


def count_parts(size_bytes: int) -> int:
    return -(-size_bytes // PART_BYTES)


def read_part(body: Mapping[str, Any]) -> TracePart:
    """The part in a message from an agent. Raises ValueError for anything else."""
    about, content = body.get("trace"), body.get("content")
    if not isinstance(about, dict) or not isinstance(content, str):
        raise ValueError("it is no part of a trace")
    name, note, digest = about.get("name"), about.get("note"), about.get("digest")
    size, number, saved_s = about.get("size_bytes"), about.get("number"), about.get("saved_s")
    if not isinstance(name, str) or not TRACE_NAME.fullmatch(name) or not isinstance(note, str):
        raise ValueError("its name is none of a trace, or its note no text")
    if type(size) is not int or type(number) is not int or not isinstance(saved_s, int | float):
        raise ValueError("its size, number or time is no number")
    if not 0 < size <= _MOST_BYTES or not 0 <= saved_s <= LATEST_S:
        raise ValueError("its size or its time is out of range")
    if note:
        return TracePart(name, size, saved_s, note=cut(note))
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("its digest is none")
    if size > TRACE_BYTES or not 0 <= number < count_parts(size):
        raise ValueError(f"a trace has at most {TRACE_BYTES} bytes")
    found = base64.b64decode(content, validate=True)
    if len(found) != min(PART_BYTES, size - number * PART_BYTES):
        raise ValueError("the part has another length")
    return TracePart(name, size, saved_s, digest, number, found)


class TraceStore:
    """Which traces there are is in the document of each run: `traces`, by their names. `parts`: so many have come."""

    def __init__(self, bus: Bus) -> None:
        self._objects = bus.objects(OBJECTS)

    def keep(self, documents: dict[str, Document], key: str, message: BusMessage, now_s: float) -> str:
        """Writes an object, and changes the documents. Returns why the trace is not kept; "" if it is.

        Raises UnknownOutcome: the same message is to be kept later.
        """
        try:
            part = read_part(message.body)
        except ValueError:
            documents[key] = {**documents[key], "damaged": documents[key].get("damaged", 0) + 1}
            return ""
        if not self._is_next(documents[key]["traces"].get(part.name), part):
            return ""
        if part.number == 0:
            self._begin(documents, key, part, now_s)
        if part.note:
            return ""
        entry = documents[key]["traces"][part.name]
        try:
            self._put(documents, key, part)
        except BusRefused as error:  # events count for more than the traces beside them
            self._delete(documents, key, part.name)
            _set(documents, key, part.name, entry | {"parts": 0, "note": cut(f"the controller has no room: {error}")})
            return f"the trace {part.name} of {key} is not kept: {error}"
        _set(documents, key, part.name, entry | {"parts": part.number + 1})
        return ""

    def _is_next(self, before: Mapping[str, Any] | None, part: TracePart) -> bool:
        """Whether a part is the one that is missing. Others came before, or those before them were not kept."""
        if before is None or before["digest"] != part.digest or before["note"]:
            return part.number == 0
        return bool(part.number == before["parts"])

    def _begin(self, documents: dict[str, Document], key: str, part: TracePart, now_s: float) -> None:
        self._delete(documents, key, part.name)
        while len(kept := documents[key]["traces"]) >= TRACES_KEPT:
            self._delete(documents, key, min(kept, key=lambda name: kept[name]["at_s"]))
        about = {"size_bytes": part.size_bytes, "saved_s": part.saved_s, "digest": part.digest, "note": part.note}
        _set(documents, key, part.name, about | {"parts": 0, "at_s": now_s})

    def _put(self, documents: dict[str, Document], key: str, part: TracePart) -> None:
        own = key, part.name

        def evict() -> bool:
            # Each part counts, also those of this trace: a machine with a large one does not take the room of another.
            listed = [
                (of, name, math.inf if (of, name) == own else one["at_s"])
                for of, document in documents.items()
                for name, one in document.get("traces", {}).items()
                for _ in range(one["parts"])
            ]
            oldest = find_oldest(listed) if listed else own
            if oldest != own:
                self._delete(documents, *oldest)
            return oldest != own

        put_evicting(self._objects, _name_part(key, part.name, part.digest, part.number), part.content, evict)

    def _delete(self, documents: dict[str, Document], key: str, name: str) -> None:
        before = documents[key]["traces"].get(name)
        if before is not None:
            self._delete_parts(key, name, before)
            rest = {one: about for one, about in documents[key]["traces"].items() if one != name}
            documents[key] = {**documents[key], "traces": rest}

    def _delete_parts(self, key: str, name: str, about: Mapping[str, Any]) -> None:
        for number in range(about["parts"]):
            self._objects.delete(_name_part(key, name, about["digest"], number))

    def forget(self, key: str, document: Document) -> None:
        for name, about in document.get("traces", {}).items():
            self._delete_parts(key, name, about)


def _set(documents: dict[str, Document], key: str, name: str, about: Mapping[str, Any]) -> None:
    documents[key] = {**documents[key], "traces": documents[key]["traces"] | {name: dict(about)}}


def _name_part(key: str, name: str, digest: str, number: int) -> str:
    word = sha256(f"{name} {digest}".encode()).hexdigest()[:32]
    return f"{key}.{word}.{number}"


def is_whole(about: Mapping[str, Any]) -> bool:
    """Whether every part of a trace has come, by its entry in a document."""
    return not about["note"] and bool(about["parts"] == count_parts(about["size_bytes"]))


def read_trace(bus: Bus, key: str, name: str, about: Mapping[str, Any]) -> bytes:
    """The bytes of a trace, by its entry in a document. May be called beside the store. Raises BusError."""
    objects, digest = bus.objects(OBJECTS), about["digest"]
    numbers = range(count_parts(about["size_bytes"]))
    content = b"".join(objects.get(_name_part(key, name, digest, number)) or b"" for number in numbers)
    if sha256(content).hexdigest() != digest:
        raise BusError("the trace is not whole")
    return content
