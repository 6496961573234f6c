"""A source of documents or chats that was found but is not opened yet. Reads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Opened = TypeVar("Opened")  # documents, or chats


@dataclass(frozen=True, slots=True)
class Origin(Generic[Opened]):
    """A source that was found but is not opened yet."""

    name: str  # for messages
    fingerprint: str  # of names, sizes and modification times: differs where the text may differ
    identity: str  # of names and sizes: the same on every machine with the same files
    size_bytes: int  # on disk
    open: Callable[[], Opened]
