"""The verbs of a bus, its messages and its subjects. Opens nothing.

A subject is made of plain words with dots between them. In a pattern `*` stands for one word, and `>` at the end for
one or more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from prime_train.core.outside import parse_json

Found = TypeVar("Found")
MESSAGE_BYTES = 4 * 2**20  # one line of events has at most 1 MiB, and its quotes are escaped
VALUE_BYTES = 512 * 2**10  # of one key
OBJECT_BYTES = 4 * 2**20
OBJECTS_BYTES = 64 * 2**20  # in one bucket
KEPT = "pt.*.r.*.ev"  # these messages stay until their reader acknowledges them; all others pass by
QUEUED_BYTES = 64 * 2**20  # that a subscriber may leave untaken
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"
_SUBJECT = re.compile(rf"{_WORD}(?:\.{_WORD}){{0,9}}")
_PATTERN = re.compile(rf"(?:{_WORD}|\*)(?:\.(?:{_WORD}|\*)){{0,9}}(?:\.>)?|>")
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class BusError(Exception):
    """The bus did not do it. The text is the reason."""


class UnknownOutcome(BusError):
    """No answer in time: it may have happened, or happen later. Repeat it with the same id."""


class BusRefused(BusError):
    """It did not happen, and repeating it changes nothing until its cause is removed: no permission, a full store."""


class RevisionConflict(BusError):
    """Another writer changed the key first."""


@dataclass(frozen=True, slots=True)
class BusMessage:
    """One message. `reply`: the subject that waits for an answer; "" if none does."""

    subject: str
    id: str
    body: Mapping[str, Any]
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of a key; None once it is deleted. A later revision is a larger number."""

    key: str
    value: Mapping[str, Any] | None
    revision: int


class Subscription(Protocol):
    """Messages that match a pattern, in the order in which each sender sent them.

    `lost`: messages that were dropped because they were not taken in time. `rejected`: what was no message.
    """

    @property
    def lost(self) -> int: ...

    @property
    def rejected(self) -> int: ...

    def take(self, timeout_s: float) -> list[BusMessage]:
        """The messages since the last call. Waits for the first one."""

    def acknowledge(self) -> None:
        """Forget the kept messages that were taken. Until then, the next reader with the same name takes them too."""

    def close(self) -> None: ...


class KeyWatch(Protocol):
    def take(self, timeout_s: float) -> list[Entry]:
        """The changes since the last call; at the first call every key. Waits for the first one.

        Where one key changes several times, only the latest change is certain to be seen.
        """

    def close(self) -> None: ...


class KeyValues(Protocol):
    """A bucket of keys. Each method raises BusError; `UnknownOutcome` from a write means that it may have happened."""

    def get(self, key: str) -> Entry | None:
        """None for a key that is not there."""

    def list_entries(self) -> list[Entry]: ...

    def put(self, key: str, value: Mapping[str, Any]) -> int:
        """Writes in any case. Returns the revision."""

    def update(self, key: str, value: Mapping[str, Any], revision: int) -> int:
        """Writes if the key still has this revision; 0 = it must not be there. Raises RevisionConflict."""

    def delete(self, key: str) -> None: ...

    def watch(self) -> KeyWatch: ...


class Objects(Protocol):
    """A bucket of large values by name, such as stacks. Each method raises BusError."""

    def put(self, name: str, content: bytes) -> None:
        """Writes or replaces it: a reader sees the old or the whole new one. BusRefused: the bucket is full."""

    def get(self, name: str) -> bytes | None:
        """None for a name that is not there."""

    def delete(self, name: str) -> None:
        """What is not there is no error."""

    def list_names(self) -> list[str]: ...


class Bus(Protocol):
    def publish(self, subject: str, body: Mapping[str, Any], message_id: str) -> None:
        """Sends a message. A kept one is stored when this returns, once for each id. Raises BusError."""

    def subscribe(self, pattern: str, name: str = "") -> Subscription:
        """With a name: kept messages, from the first that no reader of this name has acknowledged."""

    def request(self, subject: str, body: Mapping[str, Any], message_id: str, timeout_s: float) -> BusMessage:
        """The first answer. Raises UnknownOutcome after the time."""

    def kv(self, bucket: str) -> KeyValues: ...

    def objects(self, bucket: str, most_bytes: int = OBJECTS_BYTES) -> Objects: ...

    def take_problems(self) -> list[str]:
        """What went wrong since the last call and had no call to fail: a refused message, a lost connection."""

    def close(self) -> None: ...


def check_subject(subject: str) -> str:
    """The subject. Raises ValueError for one that is not made of plain words."""
    if not _SUBJECT.fullmatch(subject):
        raise ValueError(f"{subject[:100]!r} is no subject: plain words with dots between them")
    return subject


def check_pattern(pattern: str) -> str:
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(f"{pattern[:100]!r} is no pattern: plain words and *, with dots between them, > at the end")
    return pattern


def check_name(name: str) -> str:
    """The name of a bucket, a reader or a machine. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is no name: up to 63 letters, digits, - and _")
    return name


def to_word(text: str) -> str:
    """A plain word for any text. Two texts that differ have different words."""
    if _NAME.fullmatch(text) and "--" not in text:
        return text
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-_")[:40] or "x"
    return f"{plain}--{sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern. Both are checked."""
    wanted, words = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(words) <= len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(one in ("*", word) for one, word in zip(wanted, words, strict=True))


def encode_message(body: Mapping[str, Any], message_id: str) -> bytes:
    """The bytes of a message. Raises ValueError for an id or a body that a reader would refuse."""
    if not _ID.fullmatch(message_id):
        raise ValueError(f"{message_id[:100]!r} is no id: up to 200 letters, digits and . : - _")
    content = as_json({"id": message_id, "body": dict(body)})
    if len(content) > MESSAGE_BYTES:
        raise ValueError(f"a message has at most {MESSAGE_BYTES} bytes, and this one {len(content)}")
    return content


def decode_message(subject: str, content: bytes, reply: str = "") -> BusMessage:
    """The message that was received. Raises ValueError for anything else, such as one that is too long or too deep."""
    if len(content) > MESSAGE_BYTES:
        raise ValueError(f"it has more than {MESSAGE_BYTES} bytes")
    found = parse_json(content)
    if not isinstance(found, dict) or found.keys() != {"id", "body"}:
        raise ValueError("it is no object with an id and a body")
    message_id, body = found["id"], found["body"]
    if not isinstance(message_id, str) or not _ID.fullmatch(message_id) or not isinstance(body, dict):
        raise ValueError("its id is no plain text, or its body is no object")
    if reply:
        check_subject(reply)
    return BusMessage(check_subject(subject), message_id, body, reply)


def check_object(content: bytes) -> bytes:
    if len(content) > OBJECT_BYTES:
        raise ValueError(f"an object has at most {OBJECT_BYTES} bytes, and this one {len(content)}")
    return content


def encode_value(value: Mapping[str, Any]) -> bytes:
    content = as_json(dict(value))
    if len(content) > VALUE_BYTES:
        raise ValueError(f"a value has at most {VALUE_BYTES} bytes, and this one {len(content)}")
    return content


def decode_value(content: bytes) -> Mapping[str, Any]:
    """The value of a key. Raises ValueError for anything else."""
    found = parse_json(content) if len(content) <= VALUE_BYTES else None
    if not isinstance(found, dict):
        raise ValueError("it is no object, or too long")
    return found


def as_json(value: Mapping[str, Any]) -> bytes:
    """Raises ValueError for what no reader takes: NaN, half a surrogate pair, too many levels."""
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    parse_json(content)  # its own checks, so that nothing is sent that every reader refuses
    return content


def wait_for(look: Callable[[], list[Found]], timeout_s: float, pause: Callable[[float], object]) -> list[Found]:
    """What `look` finds, at the latest after the time. `pause` waits between two looks, at most as long as given."""
    until_s = time.monotonic() + timeout_s
    while not (found := look()) and (left_s := until_s - time.monotonic()) > 0:
        pause(left_s)
    return found
