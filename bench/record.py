"""Records the results of a benchmark: one JSON line on stdout, and results/NAME.json. Measures nothing itself."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

# What these figures may be at most; a benchmark writes it beside the figure as "most". No other figure has a limit.
LINT_RATIO = 0.5  # lint of one file, times check-jsonschema
YAML_RATIO = 0.8  # lint of a YAML file, times check-jsonschema with a one-line schema on the same file
HELP_RATIO = 0.45  # --help, times check-jsonschema
SUPERVISOR_MIB = 64  # the supervisor and the children of its watches


@cache
def commit() -> str:
    """The short commit hash, with "+changes" if tracked files were changed; "" outside a checkout."""
    git = ["git", "-C", str(HERE)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return ""
    unchanged = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../src"], cwd=HERE, check=False).returncode == 0
    return head.stdout.strip() + ("" if unchanged else "+changes")


@cache
def machine() -> str:
    """CPU, usable cores, memory and Python, for example "AMD EPYC, 2 cores, 8 GiB, Python 3.11"."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cpu}, {cores} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def with_bytecode(folder: Path) -> dict[str, str]:
    """An environment in which Python writes bytecode files below `folder`, even if this process must not."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the samples are, with linear interpolation."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def emit(what: str, samples: Sequence[float], **extra: Any) -> dict[str, Any]:
    """Prints one JSON line about `samples` (seconds unless `extra` has a `unit`) and returns it as a dict."""
    row = {
        "what": what,
        "n": len(samples),
        "median": round(statistics.median(samples), 6),
        "p90": round(percentile(samples, 0.9), 6),
        "unit": "s",
        **extra,
        "machine": machine(),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(json.dumps(row), flush=True)
    return row


def write(name: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Writes bench/results/NAME.json, replacing the file at once, and returns its path."""
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".json.tmp")
    beside.write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
    return path
