"""Reads the seven numbers in vLLM's /metrics by which an engine is judged. Pure.

The parser of prometheus_client is not used: it creates an object for each of some five hundred lines, most of them
buckets of histograms, and would add a package to every installation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Prometheus text format 0.0.4: NAME{LABEL="VALUE",...} VALUE [TIMESTAMP]. Values of labels may hold escaped quotes.
_LINE = re.compile(r'vllm:(?P<name>[a-z_]+)\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\} (?P<value>\S+)')
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')

# Names as in vLLM 0.10 to 0.32 (v1/metrics/loggers.py). A prompt counts when all of it is computed; while a long
# one is computed in pieces, only the use of the KV cache changes.
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
