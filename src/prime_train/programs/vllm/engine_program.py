"""Run as a program: samples a vLLM server repeatedly, one JSON object to a line. Also parses its /metrics.

engine_program.py URL INTERVAL_S MODEL

After a while without tokens it sends a request of one token itself: an engine that died before the first request, or
between two, shows in no counter, and /health stays 200 (vllm#17972, #1492). One such request is open at a time, and
none is sent to a server that sleeps or is paused.

The parser of prometheus_client is not used: it creates an object for each of some five hundred lines, most of them
buckets of histograms, and would add a package to every installation.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from prime_train.core.http import Answer, send_request
from prime_train.supervise.watches.sample_lines import serve

# Prometheus text format 0.0.4: NAME{LABEL="VALUE",...} VALUE [TIMESTAMP]. Values of labels may hold escaped quotes.
_LINE = re.compile(r'vllm:(?P<name>[a-z_]+)\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\} (?P<value>\S+)')
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
# Names as in vLLM 0.10 to 0.32 (v1/metrics/loggers.py). A prompt counts when all of it is computed; while a long
# one is computed in pieces, only the use of the KV cache changes.
_TOKENS = ("prompt_tokens_total", "generation_tokens_total")
_CACHE = "kv_cache_usage_perc"
_COUNTS = ("num_requests_running", "num_requests_waiting", "num_preemptions_total", "engine_sleep_state")
_WANTED = (*_TOKENS, _CACHE, *_COUNTS)
_DEADLINE_S = 5.0  # for one answer; an API server without enough CPU may take a second
_TRY_AFTER_S = 15.0  # without a token
_GIVE_UP_S = 600.0  # on an own request


class EngineCounters(NamedTuple):
    """The counters of one engine core."""

    name: str  # "0": its number among the data-parallel engines
    tokens: float  # of prompts and answers, since the server started
    cache_used: float  # part of the KV cache, 0 to 1
    running: int
    waiting: int
    preemptions: int
    asleep: bool


def parse_engines(text: str) -> tuple[EngineCounters, ...]:
    """The engines of a server, by name; () for a text that vLLM did not write."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _parse_lines(text):
        awake = labels.get("sleep_state", "awake") == "awake"
        if name == "engine_sleep_state" and not awake:
            continue
        numbers = found.setdefault(labels.get("engine", "0"), {})
        numbers[name] = numbers.get(name, 0.0) + value  # several models or API servers have separate counters
    return tuple(
        _create_engine(name, numbers) for name, numbers in sorted(found.items()) if "num_requests_running" in numbers
    )


def _create_engine(name: str, numbers: dict[str, float]) -> EngineCounters:
    return EngineCounters(
        name,
        sum(numbers.get(counter, 0.0) for counter in _TOKENS),
        numbers.get(_CACHE, 0.0),
        int(numbers["num_requests_running"]),
        int(numbers.get("num_requests_waiting", 0)),
        int(numbers.get("num_preemptions_total", 0)),
        numbers.get("engine_sleep_state", 1.0) == 0.0,
    )


def _parse_lines(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.split("\n"):
        if not line.startswith("vllm:"):
            continue
        match = _LINE.match(line)
        if match is None or match["name"] not in _WANTED:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):  # NaN and Inf are legal there, and are skipped
            yield match["name"], dict(_LABEL.findall(match["labels"])), value


class OwnRequest:
    """The own request, open or answered. Its thread writes it, the loop reads it."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.status = 0  # of the last answer; 0 = there was none

    def send(self, url: str, model: str) -> None:
        self.since_s = time.monotonic()
        threading.Thread(target=self._send, args=(url, model), daemon=True).start()

    def _send(self, url: str, model: str) -> None:
        body = {"model": model, "prompt": [0], "max_tokens": 1}
        self.status = send_request("POST", f"{url}/v1/completions", _GIVE_UP_S, body).status
        self.since_s = None


def sample(url: str, own: OwnRequest) -> dict[str, Any]:
    """One look. Values that a server has only in development mode (weight version, pause) are null without it."""
    health = send_request("GET", f"{url}/health", _DEADLINE_S)
    metrics = send_request("GET", f"{url}/metrics", _DEADLINE_S) if health.status else Answer(0, "")
    development = os.environ.get("VLLM_SERVER_DEV_MODE") == "1" and health.status == 200
    return {
        "at_s": time.monotonic(),
        "health": health.status,
        "fault": "" if health.status == 200 else health.words,
        "refused": health.refused,
        "metrics": metrics.status,
        "engines": parse_engines(metrics.text) if metrics.status == 200 else (),
        "asked_s": time.monotonic() - own.since_s if own.since_s is not None else None,
        "answered": own.status,
        "paused": _read_field(f"{url}/is_paused", "is_paused") is True if development else False,
        "weight_version": _read_field(f"{url}/weight_info", "weight_version") if development else None,
    }


def _read_field(url: str, name: str) -> object:
    answer = send_request("GET", url, _DEADLINE_S)
    try:
        found = json.loads(answer.text) if answer.status == 200 else None
    except json.JSONDecodeError:
        return None
    return found.get(name) if isinstance(found, dict) else None


def main(url: str, interval_s: float, model: str) -> NoReturn:
    own = OwnRequest()
    tokens, moved_s = -1.0, time.monotonic()

    def look() -> dict[str, Any]:
        nonlocal tokens, moved_s
        found = sample(url, own)
        counted = sum(engine.tokens for engine in found["engines"])
        if counted != tokens or not found["engines"]:
            tokens, moved_s = counted, time.monotonic()
        idle = all(not engine.asleep for engine in found["engines"]) and not found["paused"]
        if model and idle and own.since_s is None and time.monotonic() - moved_s >= _TRY_AFTER_S:
            own.send(url, model)
        return found

    serve(look, interval_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
