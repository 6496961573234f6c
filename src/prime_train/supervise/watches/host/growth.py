"""Finds memory that grows from save to save, and how many saves there is room for. Pure.

It is measured at saves, because each save returns a run to the same point of its cycle: memory that is still held then
was not released. The least value between two saves counts, so the peak of an evaluation or of a save does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, linear_regression

WARM_SAVES = 2  # the first saves allocate what later ones keep: staging buffers, caches, pools
LEAST_POINTS = 5
MOST_POINTS = 64
NOISE_FACTOR = 4.0
LEAST_RATIO = 0.05  # of the mean, over all points, because allocators alone cause less
LEAST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Point:
    """The memory that the run's processes held at a save: anonymous memory and swap."""

    step: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """A line through the points: the bytes that each save adds, and how many more saves there is room for."""

    bytes_per_save: float
    saves_left: float
    saves_to_come: float

    @property
    def too_much(self) -> bool:
        """Whether the memory runs out before the run ends."""
        return self.saves_left < self.saves_to_come


def measure_growth(points: Sequence[Point], free_bytes: int, steps_to_come: float) -> Growth | None:
    """The growth over the saves of one attempt, by least squares; None if there is none beyond the noise."""
    counted = points[WARM_SAVES:]
    count = len(counted)
    if count < LEAST_POINTS:
        return None
    held = [float(point.held_bytes) for point in counted]
    slope, start = linear_regression(range(count), held)
    noise = sqrt(sum((value - start - slope * number) ** 2 for number, value in enumerate(held)) / (count - 2))
    if slope * (count - 1) < max(NOISE_FACTOR * noise, LEAST_RATIO * fmean(held), LEAST_BYTES):
        return None
    steps_per_save = max(1.0, (counted[-1].step - counted[0].step) / (count - 1))
    return Growth(slope, free_bytes / slope, steps_to_come / steps_per_save)
