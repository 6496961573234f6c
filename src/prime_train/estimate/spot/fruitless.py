"""Counts attempts without progress. The monitor and the simulation end a run by the same count. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MOST_FRUITLESS = 3  # failures in a row without a newer checkpoint: [prime_train.restart] max_fruitless_attempts
# Machines lost in a row before a newer checkpoint. An interruption is no sign of a fault: if 30 % of the machines go
# before their first save, three in a row happen to most runs of a month, and ten to fewer than one run in a thousand.
MOST_LOST_MACHINES = 10


def count_fruitless(saved: Sequence[int]) -> int:
    """Attempts at the end of a history that saved nothing new.

    `saved` is the newest checkpoint after each attempt, in steps or in saves; the first entry is that before the first
    attempt. An older checkpoint than before (one was damaged) is no progress.
    """
    best, since = -1, 0
    for newest in saved:
        if newest > best:
            best, since = newest, 0
        else:
            since += 1
    return since


def is_spent(saved: Sequence[int], most: int = MOST_FRUITLESS) -> bool:
    """Whether another attempt would only cost money: `most` in a row saved nothing new."""
    return count_fruitless(saved) >= most
