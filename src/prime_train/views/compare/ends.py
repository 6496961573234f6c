"""Reads the best and the latest value from the end of the metrics. Never reads more bytes than its limit."""

from __future__ import annotations

import os
import re
import statistics
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prime_train.core.outside import open_regular
from prime_train.core.rundir import RunDir
from prime_train.events.bounds import MOST_VALUE

# A search is ten times faster than reading each line as JSON, and five hundred runs are listed in a second.
_NUMBER = rb": ?(-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?)[,}]"
_LOSS, _REWARD, _SPEED = b'"loss"', b'"reward"', b'"tokens_per_s"'
_VALUES = {name: re.compile(name + _NUMBER) for name in (_LOSS, _REWARD, _SPEED)}
_SPEED_BYTES = 8 << 10  # some dozen steps, which are enough for a median
_PROGRESS = b'"kind":"progress"'


class Best(NamedTuple):
    """The best value in what was read. `is_whole`: every step was read, so no other one is better."""

    value: float
    is_whole: bool


class Ends(NamedTuple):
    """What the last metrics show; None without such a value."""

    lowest_loss: Best | None = None
    highest_reward: Best | None = None
    tokens_per_s: float | None = None  # the median over the latest steps


def read_ends(run_dir: RunDir, limit_bytes: int) -> Ends:
    """The best values in the last `limit_bytes` of metrics.jsonl, else in the events that report progress."""
    content, is_whole = _read_end(run_dir.metrics, limit_bytes)
    if not content:  # only the bundled trainer writes metrics.jsonl; every other one has its steps as events
        content, is_whole = _read_progress(run_dir.events, limit_bytes)
    losses, rewards = _numbers(_LOSS, content), _numbers(_REWARD, content)
    speeds = _numbers(_SPEED, content[-_SPEED_BYTES:])
    return Ends(
        Best(min(losses), is_whole) if losses else None,
        Best(max(rewards), is_whole) if rewards else None,
        statistics.median(speeds) if speeds else None,
    )


def _read_end(path: Path, limit_bytes: int) -> tuple[bytes, bool]:
    """Whole lines at the end of a file, and whether these are all; nothing from a file that is not regular."""
    with suppress(OSError), open_regular(path, path.parent) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - limit_bytes))
        content = file.read(limit_bytes)
        if size <= limit_bytes:
            return content, True
        return content.partition(b"\n")[2], False  # the first line begins in the middle
    return b"", False


def _read_progress(events: Path, limit_bytes: int) -> tuple[bytes, bool]:
    """The last lines with progress in the newest file that has any."""
    try:
        names = sorted(entry.name for entry in os.scandir(events) if entry.name.endswith(".jsonl"))
    except OSError:
        return b"", False
    writers = [name for name in names if not name.startswith("supervisor")]
    for name in reversed(writers):
        content, is_whole = _read_end(events / name, limit_bytes)
        lines = [line for line in content.splitlines() if _PROGRESS in line]
        if lines:
            return b"\n".join(lines), is_whole and len(writers) == 1
    return b"", False


def _numbers(name: bytes, content: bytes) -> list[float]:
    if name not in content:
        return []
    return [value for value in map(float, _VALUES[name].findall(content)) if abs(value) <= MOST_VALUE]
