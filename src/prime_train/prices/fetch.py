"""Fetches JSON from one address over HTTPS and classifies every failure. Stores and prints nothing.

Redirects are not followed, because they would send the key to another address.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MOST_BYTES = 64 * 2**20
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
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


def is_safe(url: str) -> bool:
    """Whether a key may be sent to this address: HTTPS, or this machine. False for an invalid address."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is not closed
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return the redirect itself as the answer."""


def _fetch_once(url: str, key: str, retry: RetryPolicy) -> Any:
    request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "prime-train"})
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    direct = [urllib.request.ProxyHandler({})] if urlsplit(url).hostname in _LOOPBACK else []
    opener = urllib.request.build_opener(_NoRedirect, *direct)
    try:
        with opener.open(request, timeout=retry.read_s) as response:
            return _parse(_read(response, retry.answer_s))
    except urllib.error.HTTPError as error:
        with error:
            raise _http_failure(error) from None
    except http.client.IncompleteRead as error:
        raise Failure(FailureKind.TRUNCATED, f"the answer ends after {len(error.partial)} bytes") from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(getattr(error, "reason", error), TimeoutError):
            raise Failure(FailureKind.TIMEOUT, f"no answer within {retry.read_s:g} s") from None
        text = error.reason if isinstance(error, urllib.error.URLError) else f"{type(error).__name__} {error}"
        raise Failure(FailureKind.UNREACHABLE, str(text).strip()) from None


def _read(response: http.client.HTTPResponse, answer_s: float) -> bytes:
    """The whole body. `answer_s` limits the total time, because a server may send single bytes for ever."""
    give_up_s = time.monotonic() + answer_s
    length = response.headers.get("Content-Length")
    content = bytearray()
    while chunk := response.read1(2**16):
        content += chunk
        if time.monotonic() > give_up_s:
            raise Failure(FailureKind.TIMEOUT, f"{len(content)} bytes in {answer_s:g} s and no end")
        if len(content) > MOST_BYTES:
            raise Failure(FailureKind.NOT_JSON, f"more than {MOST_BYTES >> 20} MiB")
    if length is not None and length.isdigit() and len(content) < int(length):
        raise Failure(FailureKind.TRUNCATED, f"{len(content)} of {length} bytes arrived")
    return bytes(content)


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or a number with more digits than Python reads
        starts_like_json = content.lstrip()[:1] in (b"{", b"[")
        kind = FailureKind.TRUNCATED if starts_like_json else FailureKind.NOT_JSON
        raise Failure(kind, f"{len(content)} bytes that are not complete JSON") from None


def _http_failure(error: urllib.error.HTTPError) -> Failure:
    kind = FailureKind.SERVER if error.code >= 500 else FailureKind.OTHER_STATUS
    if str(error.code) in tuple(FailureKind):  # the value of a kind is its status, if it has one
        kind = FailureKind(str(error.code))
    after = (error.headers.get("Retry-After") or "").strip()
    return Failure(kind, f"HTTP {error.code}", float(after) if after.isdigit() else 0.0)
