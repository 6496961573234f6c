"""How long a step of a replica and a sum in it may take, from the steps that were seen. Pure: no clock, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

FLOOR_S, CEILING_S = 30.0, 1800.0  # below the floor a busy disk would look like a hang
FACTOR = 3.0  # times the slow step; the supervisor, which would end all replicas, has a larger one
WIDE = 3.0  # times the limit in steps that may be slow for a reason
STEPS_NEEDED = 10  # before them the slow step is not known
STEPS_KEPT = 500  # the latest ones, so that the limit follows a change of the batch
DEFAULT_LIMIT_S = 60.0  # of a sum before enough steps were seen; wide then, because replicas may compile
FIRST_STEPS = 5  # which compile and fill caches
_WIDE_STEPS = 2  # after a save, a change of settings, or a replica that came or went


def keep(steps_s: Sequence[float], step_s: float) -> tuple[float, ...]:
    """The latest steps with one more."""
    return (*steps_s[1 - STEPS_KEPT :], step_s)


def find_slow_s(steps_s: Sequence[float]) -> float | None:
    """The time within which 99 % of the steps ended; None for too few steps.

    Not the longest one, because a single step beside a busy disk would widen the limit for hundreds of steps.
    """
    if len(steps_s) < STEPS_NEEDED:
        return None
    return sorted(steps_s)[math.ceil(0.99 * len(steps_s)) - 1]


def learn_limit_s(steps_s: Sequence[float], first_s: float, *, is_wide: bool = False) -> float:
    """The limit of the next step. `first_s`: until enough steps were seen, as the first ones compile."""
    slow_s = find_slow_s(steps_s)
    if slow_s is None:
        return first_s
    limit_s = min(CEILING_S, max(FLOOR_S, FACTOR * slow_s))
    return min(CEILING_S, WIDE * limit_s) if is_wide else limit_s


@dataclass(frozen=True, slots=True)
class StepPace:
    """The steps of one replica, from which the limit of a sum follows. `fixed_s`: the limit that a config sets.

    Replicas enter a sum together, because a quorum is before each step: so a sum takes no longer than a slow step.
    """

    fixed_s: float | None = None
    steps_s: tuple[float, ...] = ()  # without the first ones
    count: int = 0  # steps that were committed
    wide_steps: int = FIRST_STEPS  # to come, which may be slow

    @property
    def is_wide(self) -> bool:
        return self.wide_steps > 0

    @property
    def limit_s(self) -> float:
        """The limit for each sum in the next step."""
        if self.fixed_s is not None:
            return self.fixed_s
        return learn_limit_s(self.steps_s, WIDE * DEFAULT_LIMIT_S, is_wide=self.is_wide)

    @property
    def healing_s(self) -> float:
        """The limit for one exchange while a replica gets the state of another one, which may be large."""
        return self.fixed_s or min(CEILING_S, WIDE * max(DEFAULT_LIMIT_S, self.limit_s))

    def widen(self) -> StepPace:
        """The pace before steps that may be slow: beside a save, after a change of settings or of the quorum."""
        return replace(self, wide_steps=max(self.wide_steps, _WIDE_STEPS))

    def add(self, step_s: float) -> StepPace:
        """The pace after a step that was committed."""
        steps_s = self.steps_s if self.count < FIRST_STEPS else keep(self.steps_s, step_s)
        return replace(self, steps_s=steps_s, count=self.count + 1, wide_steps=max(0, self.wide_steps - 1))
