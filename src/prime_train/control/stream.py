"""Numbers the changes of one document, and keeps the latest, so that a reader may lose the connection. Opens no file.

A change is a mapping with the same two levels as the document: what is null is gone, what is missing is as before.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Document = dict[str, dict[str, Any]]
_KEPT = 256  # changes: at five per second a reader may be away for a minute


class DocumentChange(NamedTuple):
    """The change after which the document has the number `id`."""

    id: str
    kind: str  # "state": a whole document; "change": what is different
    document: Document


def find_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Document:
    """What turns `before` into `after` by `apply`. Values that are the same object are not compared."""
    found: Document = {}
    for section in {**before, **after}:
        old, new = before.get(section, {}), after.get(section, {})
        if old is new:
            continue
        changed = {name: value for name, value in new.items() if name not in old or _differs(old[name], value)}
        changed |= {name: None for name in old if name not in new}
        if changed:
            found[section] = changed
    return found


def _differs(old: Any, new: Any) -> bool:
    return old is not new and old != new


def apply(document: Document, difference: Document) -> Document:
    """The document after a change; the page does the same."""
    after = {section: dict(values) for section, values in document.items()}
    for section, changed in difference.items():
        values = after.setdefault(section, {})
        for name, value in changed.items():
            if value is None:
                values.pop(name, None)
            else:
                values[name] = value
    return after


class Stream:
    """The document and its latest changes. One thread publishes; readers may be in any thread."""

    def __init__(self) -> None:
        self._life = os.urandom(4).hex()  # numbers of a controller that was restarted mean nothing
        self._lock = threading.Lock()
        self._number = 0
        self._document: Document = {}
        self._changes: deque[DocumentChange] = deque(maxlen=_KEPT)
        self._listeners: list[Callable[[], None]] = []

    def publish(self, document: Document) -> bool:
        """Make this the document. Returns whether it has changed."""
        difference = find_difference(self._document, document)
        with self._lock:
            self._document = document
            if not difference:
                return False
            self._number += 1
            self._changes.append(DocumentChange(self._id(self._number), "change", difference))
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        return True

    def snapshot(self) -> DocumentChange:
        """The whole document with its number."""
        with self._lock:
            return DocumentChange(self._id(self._number), "state", self._document)

    def since(self, last_id: str) -> list[DocumentChange]:
        """The changes after `last_id`; the whole document where they are not kept, or the id is of another stream."""
        with self._lock:
            life, _, number = last_id.partition("-")
            is_ours = life == self._life and number.isascii() and number.isdecimal() and len(number) < 16
            behind = self._number - int(number) if is_ours else -1
            if not 0 <= behind <= len(self._changes):
                return [DocumentChange(self._id(self._number), "state", self._document)]
            return list(self._changes)[len(self._changes) - behind :]

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change, in the thread that publishes. Returns what ends that."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                self._listeners.remove(listener)

        return end

    def _id(self, number: int) -> str:
        return f"{self._life}-{number}"
