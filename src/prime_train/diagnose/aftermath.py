"""Counts what the lines after a failure show: work that goes on, refused requests, another attempt. Decides nothing."""

from __future__ import annotations

from prime_train.diagnose.log_end import Banners, is_calm, is_refusal, may_turn
from prime_train.diagnose.progress import ENOUGH_PROGRESS, measure_progress

_MOST_REFUSALS = 1000


class Aftermath:
    """The counts of one log. They only grow while a failure waits for enough progress after it."""

    def __init__(self) -> None:
        self.banners = Banners()
        self.done = 0  # progress
        self.calm = 0  # lines at info level
        self.attempt = 1
        self.refusals: list[int] = []  # lines at which a server refused a request
        self._last_step = ""
        self._done_at_last_hit = -ENOUGH_PROGRESS

    @property
    def waits(self) -> bool:
        """Whether the last hit is not followed by enough progress yet."""
        return self.done - self._done_at_last_hit < ENOUGH_PROGRESS

    def keep_hit(self) -> None:
        """Wait for progress after this line."""
        self._done_at_last_hit = self.done

    def look(self, lowered: str, at: int, *, block_may_turn: bool) -> bool:
        """Count a lower-case line. Whether another attempt starts with it."""
        if not (block_may_turn and may_turn(lowered)):
            starts = self.banners.repeats_first(lowered)
        else:
            weight, step = measure_progress(lowered)
            self.done += weight if not step or step != self._last_step else 0
            self._last_step = step or self._last_step
            self.calm += is_calm(lowered)
            if is_refusal(lowered) and len(self.refusals) < _MOST_REFUSALS:
                self.refusals.append(at)
            starts = self.banners.starts_attempt(lowered)
        self.attempt += starts
        return starts
