"""Finds memory that grows from save to save, and how many saves there is room for. Pure.

Measured at saves, because each one returns a run to the same point of its cycle: what is still held then was not given
back. The least value between two saves is taken, so that an evaluation's or a save's own peak does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

WARM_SAVES = 2  # the first ones allocate what later ones keep: staging buffers, caches, pools
LEAST_POINTS = 5
MOST_POINTS = 64
NOISE_FACTOR = 4.0
LEAST_RATIO = 0.05  # of the mean, over all points: less is what allocators do
LEAST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Point:
    """What the run's processes held at a save: anonymous memory and swap."""

    step: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """A line through the points: what each save adds, and how many more there is room for."""

    bytes_per_save: float
    saves_left: float
    saves_to_come: float

    @property
    def too_much(self) -> bool:
        """The memory is used up before the run is over."""
        return self.saves_left < self.saves_to_come


def growth(points: Sequence[Point], free_bytes: int, steps_to_come: float) -> Growth | None:
    """The growth over the saves of one attempt, by least squares; None where there is none beyond the noise."""
    counted = points[WARM_SAVES:]
    count = len(counted)
    if count < LEAST_POINTS:
        return None
    held = [float(point.held_bytes) for point in counted]
    mean = sum(held) / count
    middle = (count - 1) / 2
    spread = sum((number - middle) ** 2 for number in range(count))
    slope = sum((number - middle) * (value - mean) for number, value in enumerate(held)) / spread
    left = [value - mean - slope * (number - middle) for number, value in enumerate(held)]
    noise = sqrt(sum(value**2 for value in left) / (count - 2))
    if slope * (count - 1) < max(NOISE_FACTOR * noise, LEAST_RATIO * mean, LEAST_BYTES):
        return None
    steps_per_save = max(1.0, (counted[-1].step - counted[0].step) / (count - 1))
    return Growth(slope, free_bytes / slope, steps_to_come / steps_per_save)
