"""Finds that the wall clock was set, or that the machine slept."""

from __future__ import annotations

import time

JUMP_S = 5.0  # smaller jumps are gradual corrections of the clock


class Clock:
    """Compares the wall clock with the monotonic clock, which stops while the machine sleeps."""

    def __init__(self) -> None:
        self._ahead_s = _ahead_s()

    def jump_s(self) -> float | None:
        """How far the wall clock moved against the monotonic clock since the last call; None if it did not."""
        ahead_s = _ahead_s()
        jump_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return round(jump_s, 3) if abs(jump_s) > JUMP_S else None


def _ahead_s() -> float:
    return time.time() - time.monotonic()
