"""Fetches today's GPU prices from Prime Intellect and Vast. Writes nothing; a key goes only to its own service.

Sources: docs.primeintellect.ai/api-reference/check-gpu-availability; docs.vast.ai/api-reference/search/search-offers.
Prime Intellect sometimes answers with an empty list and fills it on a second try (seen 2026-10-06, skypilot
sky/catalog/data_fetchers/fetch_primeintellect.py@f00893d), so an empty answer is a failure and never empties the table.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlencode

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.http import HttpBounds, HttpFault, HttpReply, HttpRequest, NoReplyError, is_safe, send
from prime_train.prices.catalogues import (
    VAST_NAMES,
    prime_intellect_offers,
    prime_intellect_rows,
    vast_offers,
    vast_rows,
)
from prime_train.prices.price import PriceRows

MOST_BYTES = 64 * 2**20
_LONGEST_RETRY_AFTER_S = 30.0


# {key}, {variable} and {right} belong to the service; {again} is the command to retry.
_FILE = "unset {variable} if it is set, or import a file: prime-train prices import FILE"


class FailureKind(Enum):
    """Why a request failed, as what, why and fix of the message."""

    NO_KEY = ("{key} holds no key", "the service needs a key", "export {key}=...; then {again}")
    UNAUTHORIZED = ("the key is refused", "it is wrong, expired or missing", "set {key} to a valid key")
    FORBIDDEN = ("the key may not read prices", "it lacks a right", "give it the right {right}")
    MISSING = ("the address does not exist", "it moved, or the address is wrong", _FILE)
    LIMITED = ("too many requests", "the service limits them", "wait a minute; then {again}")
    SERVER = ("the service has an internal error", "only the service can fix it", "later: {again}")
    OTHER_STATUS = ("the answer is neither prices nor a known error", "redirects are not followed", _FILE)
    TIMEOUT = ("no answer in time", "the service is slow, or the network drops packets", "{again}")
    UNREACHABLE = (
        "it is out of reach",
        "no network, unknown host, or a proxy",
        "check the network; {again}",
    )
    NOT_JSON = ("the answer is not from the price service", "it may be a login page or a proxy", _FILE)
    TRUNCATED = ("the answer is cut off", "the connection ended early", "{again}")
    EMPTY = ("no offer of a known GPU in the answer", "the service may have failed", "later: {again}")


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
_BY_STATUS = {
    401: FailureKind.UNAUTHORIZED,
    403: FailureKind.FORBIDDEN,
    404: FailureKind.MISSING,
    429: FailureKind.LIMITED,
}
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
    kind = FailureKind.SERVER if reply.status >= 500 else _BY_STATUS.get(reply.status, FailureKind.OTHER_STATUS)
    return Failure(kind, f"HTTP {reply.status}", reply.retry_after_s)


_PAGE = 100  # most offers on one page of Prime Intellect
_MOST_PAGES = 100
_VAST_LIMIT = 5000


class Service(NamedTuple):
    """A price service: its address, and the environment variables for address and key."""

    id: str
    name: str
    address: str
    address_variable: str
    key_variable: str
    needs_key: bool
    path: str
    key_right: str
    fetch: Callable[[str, str, RetryPolicy], list[tuple[str, Any]]]  # of address and key
    rows: Callable[[list[tuple[str, Any]], str, str, str], PriceRows]


class RefreshResult(NamedTuple):
    """The answer of a service: its rows, or the problem that prevented them."""

    service: Service
    rows: PriceRows
    problem: UserError | None


def refresh(
    service: Service, environment: Mapping[str, str], as_of: str, retry: RetryPolicy | None = None
) -> RefreshResult:
    """The prices of one service, or the problem. `environment` holds key and address."""
    base = environment.get(service.address_variable, "").rstrip("/") or service.address
    if not is_safe(base):
        variable, why = service.address_variable, "the key would be sent unencrypted"
        unsafe = UserError("not an https:// address", variable, why, f"unset {variable}")
        return RefreshResult(service, PriceRows(()), unsafe)
    url = base + service.path
    key = environment.get(service.key_variable, "").strip()
    rows = PriceRows(())
    try:
        if not key.isascii() or not key.isprintable() or (service.needs_key and not key):
            raise Failure(FailureKind.NO_KEY, "")
        found = service.fetch(url, key, retry or RetryPolicy())
        rows = service.rows(found, service.name, url, as_of)
        if not rows.prices:
            raise Failure(FailureKind.EMPTY, f"{len(found)} offers")
    except Failure as failure:
        return RefreshResult(service, rows, problem(service, failure, url))
    return RefreshResult(service, rows, None)


def has_key(service: Service, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment holds the key that the service needs."""
    return not service.needs_key or bool(environment.get(service.key_variable, "").strip())


def _fetch_prime_intellect(url: str, key: str, retry: RetryPolicy) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    empty = 0
    page = 1
    while page <= _MOST_PAGES:
        query = urlencode({"page": page, "page_size": _PAGE})
        answer = get_json(f"{url}?{query}", key, retry)
        items = prime_intellect_offers(answer)
        if items is None:
            raise Failure(FailureKind.NOT_JSON, "an answer without items")
        found += items
        total = answer.get("totalCount") if isinstance(answer, dict) else None
        if not items:
            if found or empty == len(retry.between_s):
                return found
            retry.sleep(retry.between_s[empty])
            empty += 1
            continue
        if not isinstance(total, int) or len(found) >= total:
            return found
        page += 1
    return found


def _fetch_vast(url: str, key: str, retry: RetryPolicy) -> list[tuple[str, Any]]:
    """On-demand and interruptible offers, one request for each."""
    found: list[tuple[str, Any]] = []
    names = [*VAST_NAMES, *(name.replace("_", " ") for name in VAST_NAMES)]  # its documentation uses both
    for kind in ("on-demand", "bid"):
        wanted = {"gpu_name": {"in": names}, "rentable": {"eq": True}, "type": kind, "limit": _VAST_LIMIT}
        answer = get_json(f"{url}?{urlencode({'q': json.dumps(wanted)})}", key, retry)
        items = vast_offers(answer)
        if items is None:
            raise Failure(FailureKind.NOT_JSON, "an answer without offers")
        for place, item in items:
            offer = item | {"is_bid": kind == "bid"} if isinstance(item, dict) else item
            found.append((f"{kind} {place}", offer))
    return found


def problem(service: Service, failure: Failure, url: str) -> UserError:
    """The message about a failure. Exit code 4: a service is out of reach."""
    what, why, fix = (
        text.format(
            key=service.key_variable,
            variable=service.address_variable,
            right=service.key_right,
            again=f"prime-train prices refresh --provider {service.id}",
        )
        for text in failure.kind.value
    )
    detail = f" ({failure.detail})" if failure.detail else ""
    why += "; its earlier prices stay"
    return UserError(what + detail, f"{service.name} {url}", why, fix, ExitCode.OUT_OF_REACH)


SERVICES = (
    Service(
        "primeintellect",
        "Prime Intellect",
        "https://api.primeintellect.ai",
        "PRIME_TRAIN_PRIMEINTELLECT_URL",
        "PRIME_API_KEY",
        True,
        "/api/v1/availability/gpus",
        "Availability -> Read",
        _fetch_prime_intellect,
        prime_intellect_rows,
    ),
    Service(
        "vast",
        "Vast",
        "https://console.vast.ai",
        "PRIME_TRAIN_VAST_URL",
        "VAST_API_KEY",
        False,
        "/api/v0/bundles/",
        "to search offers",
        _fetch_vast,
        vast_rows,
    ),
)
