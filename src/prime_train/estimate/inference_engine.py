"""Reads what each version of vLLM takes and how it counts, out of registry/vllm_memory.toml. Computes nothing."""

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
    """How one version of vLLM divides a GPU. `fraction` is gpu_memory_utilization where nobody sets it."""

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
    """The entry for a version of vLLM: "0.22.0", "0.32.1.dev3". An unreadable one is taken for the newest."""
    wanted = _numbers(version) or _numbers(NEWEST)
    rows = [row for row in _tables()["engine"] if _numbers(row["from"]) <= wanted]
    row = {key: value for key, value in rows[-1].items() if key not in ("from", "as_of")}
    return Engine(version=version, **row)


def version_of_generation(generation: str | None) -> str:
    """The vLLM that a prime-rl generation comes with; the newest known one for every other config."""
    return features_of_generation(generation).vllm if generation else NEWEST


def interval_gib(table: str, key: str) -> Interval:
    """An interval of the registry, told in GiB there, in bytes."""
    return Interval(*(float(value) * GIB for value in _tables()[table][key]))


def interval(table: str, key: str) -> Interval:
    return Interval(*(float(value) for value in _tables()[table][key]))


def number(table: str, key: str) -> int:
    return int(_tables()[table][key])


def words(table: str, key: str) -> str:
    return str(_tables()[table][key])


def quantized_bytes(method: str) -> float | None:
    """Bytes of one number of a matrix under a method of quantisation, scales included; None where it is not known."""
    value = _tables()["quantized"].get(method.lower().replace("-", "_"), _tables()["quantized"].get(method.lower()))
    return None if value is None else float(value)


def is_at_least(version: str, threshold: str) -> bool:
    return (_numbers(version) or _numbers(NEWEST)) >= _numbers(threshold)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 22, 0); empty where there are none."""
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
