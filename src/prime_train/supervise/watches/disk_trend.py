"""How fast a disk fills, from a history of looks at it. Pure.

A disk that holds checkpoints is a saw-tooth, and a file that is copied once is a jump: neither fills a disk. What
fills it goes on: over minutes in most of the steps between looks, over an hour in both of its halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

_FAST = 12  # looks: two minutes at ten seconds each
_FAST_ENOUGH = 6
_SLOW_STEP_S = 60.0
_SLOW = 60  # points of the slow history: an hour
_SLOW_ENOUGH = 20


class Point(NamedTuple):
    at_s: float  # time.monotonic()
    used_bytes: float


@dataclass(frozen=True, slots=True)
class Trend:
    """What is kept of the history of one disk: the latest looks, and one point for each minute of the last hour."""

    fast: tuple[Point, ...] = ()
    slow: tuple[Point, ...] = ()
    minute: tuple[Point, ...] = ()  # looks that have not yet become a point of the slow history

    def grown(self, point: Point) -> Trend:
        """The trend with one more look."""
        minute = (*self.minute, point)
        slow = self.slow
        if point.at_s - minute[0].at_s >= _SLOW_STEP_S:
            slow = (*slow, Point(point.at_s, median(seen.used_bytes for seen in minute)))[-_SLOW:]
            minute = ()
        return Trend((*self.fast, point)[-_FAST:], slow, minute)

    @property
    def fast_bytes_per_s(self) -> float | None:
        """What it grows by in most of the last minutes' steps; None while too little is known."""
        if len(self.fast) < _FAST_ENOUGH:
            return None
        return median(
            (after.used_bytes - before.used_bytes) / (after.at_s - before.at_s)
            for before, after in pairwise(self.fast)
            if after.at_s > before.at_s
        )

    @property
    def slow_bytes_per_s(self) -> float | None:
        """What it has grown by in both halves of the last hour, the lesser of them; None while too little is known."""
        if len(self.slow) < _SLOW_ENOUGH:
            return None
        middle = len(self.slow) // 2
        return min(slope(self.slow[:middle]), slope(self.slow[middle:]))


def slope(points: Sequence[Point]) -> float:
    """Bytes a second of the line that fits best (least squares); 0 of a single point."""
    mean_s = sum(point.at_s for point in points) / len(points)
    mean_bytes = sum(point.used_bytes for point in points) / len(points)
    spread = sum((point.at_s - mean_s) ** 2 for point in points)
    if spread == 0:
        return 0.0
    return sum((point.at_s - mean_s) * (point.used_bytes - mean_bytes) for point in points) / spread
