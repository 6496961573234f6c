"""Random numbers from the seed of a run: a stream of its own for each purpose, and the held-out documents. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

# Purposes; each has its own stream of random numbers from the seed of the run.
SPLIT, EPOCH, SOURCE, ROWS, HELD_OUT, SAMPLE = range(6)


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """The random generator of one purpose: the same seed and purpose give the same numbers."""
    return np.random.default_rng([seed, *purpose])


def split(count: int, held_out_ratio: float, seed: int, source: int, last: int = 0) -> tuple[Integers, Integers]:
    """(training, held-out) documents of a source, ascending; `last`: so many at the end, for sections of one."""
    if last:
        return np.arange(count - last), np.arange(count - last, count)
    held_out_count = min(max(1, round(count * held_out_ratio)), count - 1)
    held_out = generator(seed, SPLIT, source).choice(count, size=held_out_count, replace=False)
    is_held_out = np.zeros(count, dtype=np.bool_)
    is_held_out[held_out] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
