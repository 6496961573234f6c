"""Machines that are taken away after a time, memoryless or Weibull. Pure: every draw comes from the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Machine(NamedTuple):
    """One machine of a spot life: nothing is available for `wait_s` (not billed), then it runs for `up_s`."""

    wait_s: float
    up_s: float


class Process(Protocol):
    def machines(self, seed: int) -> Iterator[Machine]:
        """Machines without end."""


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
