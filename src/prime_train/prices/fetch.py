"""Asks one address for JSON over HTTPS, and tells each way in which it can fail apart. Keeps and prints nothing.

No redirect is followed: it would carry the key to wherever the answer points.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MOST_BYTES = 64 * 2**20
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
_LONGEST_RETRY_AFTER_S = 30.0


class Trouble(StrEnum):
    """What stood between the question and the answer."""

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


class Failure(NamedTuple):
    """`detail` holds the numbers: the status, the seconds, the bytes. Never a header that was sent."""

    trouble: Trouble
    detail: str
    retry_after_s: float | None = None


class Patience(NamedTuple):
    """How long to wait: for each read, for the whole answer, and between one try and the next."""

    read_s: float = 10.0
    answer_s: float = 60.0
    between_s: tuple[float, ...] = (0.5, 2.0)
    sleep: Callable[[float], None] = time.sleep


_PASSING = frozenset((Trouble.LIMITED, Trouble.SERVER, Trouble.TIMEOUT, Trouble.UNREACHABLE, Trouble.TRUNCATED))


def get_json(url: str, key: str, patience: Patience) -> Any | Failure:
    """The parsed answer; a Failure where the last try failed too. `key` goes into the Authorization header, "" none."""
    for wait_s in (*patience.between_s, None):
        answer = _once(url, key, patience)
        if not isinstance(answer, Failure) or answer.trouble not in _PASSING or wait_s is None:
            return answer
        asked_s = answer.retry_after_s or 0.0
        if asked_s > _LONGEST_RETRY_AFTER_S:
            return answer
        patience.sleep(max(wait_s, asked_s))
    raise AssertionError("the loop ends by returning")


def is_safe(url: str) -> bool:
    """Whether a key may be sent there: HTTPS, or this very machine. False of what is no address."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is not closed
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Take the redirect for the answer it is."""


def _once(url: str, key: str, patience: Patience) -> Any | Failure:
    request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "prime-train"})
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    direct = [urllib.request.ProxyHandler({})] if urlsplit(url).hostname in _LOOPBACK else []
    opener = urllib.request.build_opener(_NoRedirect, *direct)
    try:
        with opener.open(request, timeout=patience.read_s) as response:
            content = _read(response, patience.answer_s)
    except urllib.error.HTTPError as error:
        with error:
            return _refusal(error)
    except TimeoutError:
        return Failure(Trouble.TIMEOUT, f"no answer within {patience.read_s:g} s")
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return Failure(Trouble.TIMEOUT, f"no answer within {patience.read_s:g} s")
        return Failure(Trouble.UNREACHABLE, str(error.reason))
    except http.client.IncompleteRead as error:
        return Failure(Trouble.TRUNCATED, f"the answer ends after {len(error.partial)} bytes")
    except (OSError, http.client.HTTPException) as error:
        return Failure(Trouble.UNREACHABLE, f"{type(error).__name__} {error}".strip())
    return content if isinstance(content, Failure) else _parsed(content)


def _read(response: http.client.HTTPResponse, answer_s: float) -> bytes | Failure:
    """The whole body; a server that sends a byte now and then is given up too."""
    give_up_s = time.monotonic() + answer_s
    told = response.headers.get("Content-Length")
    content = bytearray()
    while chunk := response.read1(2**16):
        content += chunk
        if time.monotonic() > give_up_s:
            return Failure(Trouble.TIMEOUT, f"{len(content)} bytes in {answer_s:g} s and no end")
        if len(content) > MOST_BYTES:
            return Failure(Trouble.NOT_JSON, f"more than {MOST_BYTES >> 20} MiB")
    if told is not None and told.isdigit() and len(content) < int(told):
        return Failure(Trouble.TRUNCATED, f"{len(content)} of {told} bytes came")
    return bytes(content)


def _parsed(content: bytes) -> Any | Failure:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or a number of more digits than Python reads
        begins_well = content.lstrip()[:1] in (b"{", b"[")
        trouble = Trouble.TRUNCATED if begins_well else Trouble.NOT_JSON
        return Failure(trouble, f"{len(content)} bytes that are no whole JSON")


def _refusal(error: urllib.error.HTTPError) -> Failure:
    known = {401: Trouble.UNAUTHORIZED, 403: Trouble.FORBIDDEN, 404: Trouble.MISSING, 429: Trouble.LIMITED}
    trouble = known.get(error.code, Trouble.SERVER if error.code >= 500 else Trouble.OTHER_STATUS)
    after = (error.headers.get("Retry-After") or "").strip()
    return Failure(trouble, f"HTTP {error.code}", float(after) if after.isdigit() else None)
