"""Reads vLLM's /metrics: of some five hundred lines the few by which an engine is judged. Pure.

Own code, and not prometheus_client's parser: that makes an object of every line, most of which are buckets of
histograms, and would be one more package in every installation, for seven numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Prometheus text format 0.0.4: NAME{LABEL="VALUE",...} VALUE [TIMESTAMP]. Values of labels may hold escaped quotes.
_LINE = re.compile(r'vllm:(?P<name>[a-z_]+)\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\} (?P<value>\S+)')
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')

# Names as in vLLM 0.10 to 0.32 (v1/metrics/loggers.py). A prompt counts when all of it is computed; while a long one
# is, piece by piece, only the use of the KV cache moves.
_TOKENS = ("prompt_tokens_total", "generation_tokens_total")
_CACHE = "kv_cache_usage_perc"
_WANTED = (
    *_TOKENS,
    _CACHE,
    "num_requests_running",
    "num_requests_waiting",
    "num_preemptions_total",
    "engine_sleep_state",
)


class Engine(NamedTuple):
    """One engine core as its server counts it."""

    name: str  # "0": its number among the data-parallel ones
    tokens: float  # of prompts and answers, since the server began
    cache_used: float  # part of the KV cache, 0 to 1
    running: int
    waiting: int
    preemptions: int
    asleep: bool


def engines(text: str) -> tuple[Engine, ...]:
    """The engines of a server, by name; () for a text that is not vLLM's."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _values(text):
        awake = labels.get("sleep_state", "awake") == "awake"
        if name == "engine_sleep_state" and not awake:
            continue
        numbers = found.setdefault(labels.get("engine", "0"), {})
        numbers[name] = numbers.get(name, 0.0) + value  # several models or API servers count apart
    return tuple(_engine(name, numbers) for name, numbers in sorted(found.items()) if "num_requests_running" in numbers)


def _engine(name: str, numbers: dict[str, float]) -> Engine:
    return Engine(
        name,
        sum(numbers.get(counter, 0.0) for counter in _TOKENS),
        numbers.get(_CACHE, 0.0),
        int(numbers["num_requests_running"]),
        int(numbers.get("num_requests_waiting", 0)),
        int(numbers.get("num_preemptions_total", 0)),
        numbers.get("engine_sleep_state", 1.0) == 0.0,
    )


def _values(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
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
        if value == value and abs(value) != float("inf"):  # NaN and Inf are legal there, and count nothing
            yield match["name"], dict(_LABEL.findall(match["labels"])), value
