"""Judges a GPU by the results that `sb exec` of SuperBench has written. Pure: runs nothing, reads no file.

Read in microsoft/superbenchmark 0.12 (2026-04). `sb exec` writes benchmarks/NAME/rank0/results.json, a list with an
entry for each run of a benchmark and null for one that raised. It exits with 0 where a benchmark failed, so the entries
alone count. The file results-summary.jsonl comes from `sb run`, which needs Ansible and containers; it is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# A short set that compares results: products for some seconds, and copies. Keys: superbench/config/default.yaml.
BENCHMARKS: Mapping[str, Mapping[str, Any]] = {
    "gpu-burn": {"time": 20, "tensor_core": True},
    "gpu-copy-bw:correctness": {
        "mem_type": ["htod", "dtoh", "dtod"],
        "copy_type": ["sm", "dma"],
        "size": 4096,
        "num_warm_up": 0,
        "num_loops": 1,
        "check_data": True,
    },
}
# superbench/benchmarks/return_code.py. Any other code is of a benchmark that could not run, as without its program.
_FAILURES = {
    4: "it raised an error",
    32: "its program failed",
    35: "the device was not found",
    124: "it took too long",
}
LIMIT_S = 240.0  # for one GPU; the benchmarks take about a minute
VERSION_S = 60.0  # for `sb version`, which imports torch
_MOST_ENTRIES = 100
_MOST_METRICS = 1000
_LONGEST_NAME = 100


class BenchVerdict(NamedTuple):
    """What the benchmarks found. `passed` and `failed`: their names; a GPU is judged if any of both is there."""

    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # with the reason

    @property
    def is_known(self) -> bool:
        return bool(self.passed or self.failed)


def build_config() -> dict[str, Any]:
    """The config of `sb exec`, JSON-able, which is YAML too."""
    benchmarks = {name: {"enable": True, "parameters": dict(values)} for name, values in BENCHMARKS.items()}
    return {
        "version": "v0.12",
        "superbench": {"enable": None, "monitor": {"enable": False}, "benchmarks": benchmarks},
    }


def judge_results(contents: Mapping[str, object]) -> BenchVerdict:
    """The verdict over the content of each results.json, by the name of its benchmark.

    Raises ValueError for another form: what cannot be read proves nothing about a GPU.
    """
    passed, failed = list[str](), list[str]()
    for name, content in contents.items():
        if not isinstance(content, list) or len(content) > _MOST_ENTRIES:
            raise ValueError(f"the results of {name} are no list of at most {_MOST_ENTRIES}")
        problems = [_find_problem(entry) for entry in content if entry is not None]
        known = [problem for problem in problems if problem is not None]
        if bad := [problem for problem in known if problem]:
            failed.append(f"{name}: {bad[0]}")
        elif known:
            passed.append(name)
    return BenchVerdict(tuple(passed), tuple(failed))


def _find_problem(entry: object) -> str | None:
    """What one run of a benchmark found wrong, "" for nothing; None where it could not run."""
    if not isinstance(entry, dict) or not isinstance(result := entry.get("result"), dict):
        raise ValueError("an entry has no result")
    code = entry.get("return_code")
    if type(code) is not int or len(result) > _MOST_METRICS:
        raise ValueError("an entry has no return code, or too many metrics")
    # gpu-burn returns 0 for a GPU that computes wrongly, and has a number of its own for it.
    for metric, values in result.items():
        if metric.endswith("_pass") and 0 in _read_numbers(values):
            return f"wrong results ({metric[:_LONGEST_NAME]!a} is 0)"
    if any(_read_numbers(result.get("abort", []))):
        return "it was broken off"
    if code == 0:
        return ""
    return f"{_FAILURES[code]} (return code {code})" if code in _FAILURES else None


def _read_numbers(values: object) -> Sequence[float]:
    if not isinstance(values, list) or not all(isinstance(one, int | float) for one in values):
        raise ValueError("a metric is no list of numbers")
    return values
