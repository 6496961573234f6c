"""Asks Prime Intellect and Vast what their GPUs cost today. Writes nothing; a key is sent to them and told nobody.

Sources: docs.primeintellect.ai/api-reference/check-gpu-availability; docs.vast.ai/api-reference/search/search-offers.
Prime Intellect answers now and then with an empty list that a second try fills (seen 2026-10-06, skypilot
sky/catalog/data_fetchers/fetch_primeintellect.py@f00893d): an empty answer is a failure, and never empties the table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from prime_train.errors import ExitCode, UserError
from prime_train.prices import primeintellect, vast
from prime_train.prices.fetch import Failure, Patience, Trouble, get_json, is_safe
from prime_train.prices.price import Rows

_PAGE = 100  # the most that one page of Prime Intellect holds
_MOST_PAGES = 100
_VAST_LIMIT = 5000


class Service(NamedTuple):
    """Who is asked, where, and with which variables of the environment."""

    id: str
    name: str
    address: str
    address_variable: str
    key_variable: str
    needs_key: bool
    path: str
    key_right: str
    ask: Callable[[_Asked], list[tuple[str, Any]] | Failure]
    rows: Callable[[list[tuple[str, Any]], str, str, str], Rows]


class _Asked(NamedTuple):
    url: str
    key: str
    patience: Patience


class Refreshed(NamedTuple):
    """What a service answered: its rows, or what is in the way."""

    service: Service
    rows: Rows
    problem: UserError | None


def refresh(
    service: Service, environment: Mapping[str, str], as_of: str, patience: Patience | None = None
) -> Refreshed:
    """The prices of one service, or a UserError in its place. `environment` holds key and address."""
    base = environment.get(service.address_variable, "").rstrip("/") or service.address
    if not is_safe(base):
        return Refreshed(service, Rows(()), _unsafe(service))
    url = base + service.path
    key = environment.get(service.key_variable, "").strip()
    if not key.isascii() or not key.isprintable() or (service.needs_key and not key):
        return Refreshed(service, Rows(()), problem(service, Failure(Trouble.NO_KEY, ""), url))
    found = service.ask(_Asked(url, key, patience or Patience()))
    if isinstance(found, Failure):
        return Refreshed(service, Rows(()), problem(service, found, url))
    rows = service.rows(found, service.name, url, as_of)
    if not rows.prices:
        return Refreshed(service, rows, problem(service, Failure(Trouble.EMPTY, f"{len(found)} offers"), url))
    return Refreshed(service, rows, None)


def has_key(service: Service, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the service can be asked at all."""
    return not service.needs_key or bool(environment.get(service.key_variable, "").strip())


def _ask_prime_intellect(asked: _Asked) -> list[tuple[str, Any]] | Failure:
    found: list[tuple[str, Any]] = []
    empty = 0
    page = 1
    while page <= _MOST_PAGES:
        query = urlencode({"page": page, "page_size": _PAGE})
        answer = get_json(f"{asked.url}?{query}", asked.key, asked.patience)
        if isinstance(answer, Failure):
            return answer
        items = primeintellect.items(answer)
        if items is None:
            return Failure(Trouble.NOT_JSON, "an answer without items")
        found += items
        total = answer.get("totalCount") if isinstance(answer, dict) else None
        if not items:
            if found or empty == len(asked.patience.between_s):
                return found
            asked.patience.sleep(asked.patience.between_s[empty])
            empty += 1
            continue
        if not isinstance(total, int) or len(found) >= total:
            return found
        page += 1
    return found


def _ask_vast(asked: _Asked) -> list[tuple[str, Any]] | Failure:
    """On-demand and interruptible offers are two questions."""
    found: list[tuple[str, Any]] = []
    names = [*vast.NAMES, *(name.replace("_", " ") for name in vast.NAMES)]  # its own documents write both
    for kind in ("on-demand", "bid"):
        wanted = {"gpu_name": {"in": names}, "rentable": {"eq": True}, "type": kind, "limit": _VAST_LIMIT}
        answer = get_json(f"{asked.url}?{urlencode({'q': json.dumps(wanted)})}", asked.key, asked.patience)
        if isinstance(answer, Failure):
            return answer
        items = vast.items(answer)
        if items is None:
            return Failure(Trouble.NOT_JSON, "an answer without offers")
        for place, item in items:
            told = item | {"is_bid": kind == "bid"} if isinstance(item, dict) else item
            found.append((f"{kind} {place}", told))
    return found


# What was met, why, and what to do. {key}, {variable} and {right} are the service's; {again} asks it once more.
_FILE = "unset {variable} if it is set, or import a file: prime-train prices import FILE"
_TOLD: dict[Trouble, tuple[str, str, str]] = {
    Trouble.NO_KEY: ("{key} is not set to a key", "it answers only who has one", "export {key}=...; then {again}"),
    Trouble.UNAUTHORIZED: ("the key is refused", "it is wrong, expired or not there", "set {key} to a valid key"),
    Trouble.FORBIDDEN: ("the key may not read prices", "it lacks a right", "give it the right {right}"),
    Trouble.MISSING: ("there is no such address", "it moved, or the address is wrong", _FILE),
    Trouble.LIMITED: ("too many questions", "it answers only so many in a while", "wait a minute; then {again}"),
    Trouble.SERVER: ("it has a fault of its own", "nothing here can cure that", "later: {again}"),
    Trouble.OTHER_STATUS: ("it answers with neither prices nor a known refusal", "no redirect is followed", _FILE),
    Trouble.TIMEOUT: ("it does not answer in time", "it is slow, or the network swallows packets", "{again}"),
    Trouble.UNREACHABLE: ("it is out of reach", "no network, no such name, or a proxy", "look at the network; {again}"),
    Trouble.NOT_JSON: ("what answers is not the price service", "a login page or a proxy answers so", _FILE),
    Trouble.TRUNCATED: ("the answer is cut off", "the connection ended early", "{again}"),
    Trouble.EMPTY: ("no offer of a known GPU in the answer", "such services answer so by mistake", "later: {again}"),
}


def problem(service: Service, failure: Failure, url: str) -> UserError:
    """What is in the way, in four parts. Exit code 4: a service is out of reach."""
    what, why, fix = (
        words.format(
            key=service.key_variable,
            variable=service.address_variable,
            right=service.key_right,
            again=f"prime-train prices refresh --provider {service.id}",
        )
        for words in _TOLD[failure.trouble]
    )
    detail = f" ({failure.detail})" if failure.detail else ""
    why += "; its earlier prices stay"
    return UserError(what + detail, f"{service.name} {url}", why, fix, ExitCode.OUT_OF_REACH)


def _unsafe(service: Service) -> UserError:
    return UserError(
        what="not an https:// address",
        where=service.address_variable,
        why="the key would travel in the clear",
        fix=f"unset {service.address_variable}",
    )


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
        _ask_prime_intellect,
        primeintellect.rows,
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
        _ask_vast,
        vast.rows,
    ),
)
