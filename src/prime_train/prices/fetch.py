"""Fetches JSON from one address, several times if that may help, and classifies every failure. Stores nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from prime_train.core.http import HttpBounds, HttpFault, HttpReply, HttpRequest, NoReplyError, send

MOST_BYTES = 64 * 2**20
_LONGEST_RETRY_AFTER_S = 30.0


class FailureKind(StrEnum):
    """Why a request failed."""

    NO_KEY = "no key"
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    MISSING = "404"
    LIMITED = "429"
    SERVER = "5xx"
    OTHER_STATUS = "another status"
    TIMEOUT = "time-out"
    UNREACHABLE = "out of reach"
    NOT_JSON = "not JSON"
    TRUNCATED = "cut off"
    EMPTY = "empty"


@dataclass(eq=False)
class Failure(Exception):
    """A failed request. `detail` holds the status, the seconds or the bytes, never a header that was sent."""

    kind: FailureKind
    detail: str
    retry_after_s: float = 0.0


class RetryPolicy(NamedTuple):
    """Seconds to wait for each read, for the whole answer, and between tries."""

    read_s: float = 10.0
    answer_s: float = 60.0
    between_s: tuple[float, ...] = (0.5, 2.0)
    sleep: Callable[[float], None] = time.sleep


_TEMPORARY = frozenset(
    (FailureKind.LIMITED, FailureKind.SERVER, FailureKind.TIMEOUT, FailureKind.UNREACHABLE, FailureKind.TRUNCATED)
)
_KINDS = {
    HttpFault.REFUSED: FailureKind.UNREACHABLE,
    HttpFault.UNREACHABLE: FailureKind.UNREACHABLE,
    HttpFault.TIMEOUT: FailureKind.TIMEOUT,
    HttpFault.TRUNCATED: FailureKind.TRUNCATED,
    HttpFault.TOO_LONG: FailureKind.NOT_JSON,
}


def get_json(url: str, key: str, retry: RetryPolicy) -> Any:
    """The parsed answer. `key` goes into the Authorization header; "" sends none. Raises the last try's Failure."""
    for wait_s in retry.between_s:
        try:
            return _fetch_once(url, key, retry)
        except Failure as failure:
            if failure.kind not in _TEMPORARY or failure.retry_after_s > _LONGEST_RETRY_AFTER_S:
                raise
            retry.sleep(max(wait_s, failure.retry_after_s))
    return _fetch_once(url, key, retry)


def _fetch_once(url: str, key: str, retry: RetryPolicy) -> Any:
    headers = {"Accept": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        reply = send(HttpRequest("GET", url, headers), HttpBounds(retry.read_s, retry.answer_s, MOST_BYTES))
    except NoReplyError as error:
        raise Failure(_KINDS[error.fault], error.detail) from None
    if reply.status >= 300:
        raise _classify(reply)
    return _parse(reply.body)


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or a number with more digits than Python reads
        starts_like_json = content.lstrip()[:1] in (b"{", b"[")
        kind = FailureKind.TRUNCATED if starts_like_json else FailureKind.NOT_JSON
        raise Failure(kind, f"{len(content)} bytes that are not complete JSON") from None


def _classify(reply: HttpReply) -> Failure:
    kind = FailureKind.SERVER if reply.status >= 500 else FailureKind.OTHER_STATUS
    if str(reply.status) in tuple(FailureKind):  # the value of a kind is its status, if it has one
        kind = FailureKind(str(reply.status))
    after = reply.headers.get("retry-after", "").strip()
    return Failure(kind, f"HTTP {reply.status}", float(after) if after.isdigit() else 0.0)
