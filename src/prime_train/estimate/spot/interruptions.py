"""Processes that take machines away: memoryless, Weibull, or recorded. Pure: every draw comes from the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.strict_json import parse_json

MOST_SAMPLES = 2_000_000  # a year of samples, one each 16 s
_HOUR_S = 3600.0


class Machine(NamedTuple):
    """One machine of a spot life: nothing is available for `wait_s` (not billed), then it runs for `up_s`."""

    wait_s: float
    up_s: float


class Generated(NamedTuple):
    """Machines whose lives follow a Weibull distribution: `shape` 1 is memoryless, below 1 young ones die sooner.

    `between_s` is the mean life. Source of shapes below 1: Schroeder and Gibson, DSN 2006, s. 5.3 (0.7 to 0.8).
    """

    between_s: float
    shape: float = 1.0
    wait_s: float = 0.0

    def machines(self, seed: int) -> Iterator[Machine]:
        """Machines without end. The wait for each next one is exponential with mean `wait_s`."""
        draw = random.Random(seed)
        scale_s = self.between_s / math.gamma(1 + 1 / self.shape)
        wait_s = 0.0
        while True:
            yield Machine(wait_s, draw.weibullvariate(scale_s, self.shape))
            wait_s = draw.expovariate(1 / self.wait_s) if self.wait_s > 0 else 0.0


class Recorded(NamedTuple):
    """Samples of one real offer, `gap_s` apart: whether a machine was up. A replay begins anywhere and wraps around."""

    gap_s: float
    runs: tuple[tuple[bool, int], ...]  # (up, samples)

    @property
    def between_s(self) -> float:
        """Mean life of a machine. The recording has at least one up sample."""
        lives = [samples for up, samples in self.runs if up]
        return self.gap_s * sum(lives) / len(lives)

    def machines(self, seed: int) -> Iterator[Machine]:
        """Machines without end, from a random sample on."""
        runs, offset = self._rotate(seed)
        wait_s = 0.0
        for up, samples in _without_end(runs):
            seconds = (samples - offset) * self.gap_s
            offset = 0
            if up:
                yield Machine(wait_s, seconds)
                wait_s = 0.0
            else:
                wait_s += seconds

    def _rotate(self, seed: int) -> tuple[tuple[tuple[bool, int], ...], int]:
        start = random.Random(seed).randrange(sum(samples for _, samples in self.runs))
        for index, (_, samples) in enumerate(self.runs):
            if start < samples:
                return (*self.runs[index:], *self.runs[:index]), start
            start -= samples
        raise AssertionError("the start is within the recording")


Process = Generated | Recorded


def _without_end(runs: tuple[tuple[bool, int], ...]) -> Iterator[tuple[bool, int]]:
    while True:
        yield from runs


def parse_recording(text: str, source: str) -> Recorded:
    """The recording in a file of skypilot-org/spot-traces: {"metadata": {"gap_seconds": 32}, "data": [1, 1, 0, ...]}.

    1 is a sample with a machine. Raises UserError for anything else.
    """
    try:
        document = parse_json(text)
    except (ValueError, RecursionError):
        raise _not_a_recording(source, "it is not JSON") from None
    gap_s, data = _fields(document)
    if not isinstance(gap_s, int | float) or isinstance(gap_s, bool) or not 0 < gap_s <= 24 * _HOUR_S:
        raise _not_a_recording(source, "metadata.gap_seconds is no number of seconds between 0 and a day")
    if not isinstance(data, list) or not 2 <= len(data) <= MOST_SAMPLES:
        raise _not_a_recording(source, f"data is no list of 2 to {MOST_SAMPLES:,} samples")
    if any(sample not in (0, 1) for sample in data):
        raise _not_a_recording(source, "data holds something other than 0 and 1")
    runs = tuple((bool(up), sum(1 for _ in same)) for up, same in groupby(data))
    if not any(up for up, _ in runs) or all(up for up, _ in runs):
        raise _not_a_recording(source, "it has no interruption, or no machine at all")
    return Recorded(float(gap_s), runs)


def _fields(document: Any) -> tuple[Any, Any]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    return gap_s, document.get("data") if isinstance(document, dict) else None


def _not_a_recording(source: str, what: str) -> UserError:
    return UserError(
        what=what,
        where=source,
        why='a recording is {"metadata": {"gap_seconds": 32}, "data": [1, 1, 0, 1]}, 1 while a machine was up',
        fix="use a file of github.com/skypilot-org/spot-traces, or --interruptions-per-day",
        exit_code=ExitCode.FINDINGS,
    )
