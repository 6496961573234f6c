"""Tells when the clock that stamps events is set, or the machine has slept. Judges nothing else."""

from __future__ import annotations

import time

JUMP_S = 5.0  # less is a clock that is set right little by little


class Clock:
    """Compares the wall clock with the one that only ever ticks, and not in sleep."""

    def __init__(self) -> None:
        self._ahead_s = _ahead_s()

    def jump_s(self) -> float | None:
        """By how much the wall clock has left the other one since the last call; None where it has not."""
        ahead_s = _ahead_s()
        jump_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return round(jump_s, 3) if abs(jump_s) > JUMP_S else None


def _ahead_s() -> float:
    return time.time() - time.monotonic()
