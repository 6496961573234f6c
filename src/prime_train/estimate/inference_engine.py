"""Reads from registry/vllm_memory.toml how each vLLM version divides a GPU. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import tomli

from prime_train.dialects.prime_rl.features import features_of_generation
from prime_train.estimate.values import Interval
from prime_train.shipped import shipped
from prime_train.units import GIB

NEWEST = "0.32"  # the version whose source the newest entry was read from


class Engine(NamedTuple):
    """How one version of vLLM divides a GPU. `fraction` is the default of gpu_memory_utilization."""

    version: str
    fraction: float
    graphs_in_budget: bool
    hybrid_cache: bool
    tokens_by_request: bool
    null_blocks: int
    batches_in_flight: int
    large_gpu_sequences: int
    huge_gpu_batched_tokens: int
    counts_others: bool
    source: str


def engine_of(version: str) -> Engine:
    """The entry of a vLLM version: "0.22.0", "0.32.1.dev3". An unreadable version counts as the newest."""
    wanted = _numbers(version) or _numbers(NEWEST)
    rows = [row for row in _tables()["engine"] if _numbers(row["from"]) <= wanted]
    row = {key: value for key, value in rows[-1].items() if key not in ("from", "as_of")}
    return Engine(version=version, **row)


def version_of_generation(generation: str | None) -> str:
    """The vLLM that a prime-rl generation comes with; the newest known one for every other config."""
    return features_of_generation(generation).vllm if generation else NEWEST


def table_interval_bytes(table: str, key: str) -> Interval:
    """An interval in bytes; the registry holds it in GiB."""
    return Interval(*(float(value) * GIB for value in _tables()[table][key]))


def table_interval(table: str, key: str) -> Interval:
    return Interval(*(float(value) for value in _tables()[table][key]))


def table_number(table: str, key: str) -> int:
    return int(_tables()[table][key])


def table_text(table: str, key: str) -> str:
    return str(_tables()[table][key])


def quantized_bytes(method: str) -> float | None:
    """Bytes of one quantised number of a matrix, scales included; None for an unknown method."""
    value = _tables()["quantized"].get(method.lower().replace("-", "_"), _tables()["quantized"].get(method.lower()))
    return None if value is None else float(value)


def is_at_least(version: str, threshold: str) -> bool:
    return (_numbers(version) or _numbers(NEWEST)) >= _numbers(threshold)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 22, 0); () if there are none."""
    numbers = []
    for part in version.strip().lstrip("v").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


@cache
def _tables() -> Mapping[str, Any]:
    with open(shipped("vllm_memory.toml"), "rb") as file:
        return tomli.load(file)
