"""How long a step of a replica may take, from the steps that were seen. Pure: no clock, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

FLOOR_S, CEILING_S = 30.0, 1800.0  # below the floor a busy disk would look like a hang
FACTOR = 3.0  # times the slow step; the supervisor, which would end all replicas, has a larger one
STEPS_NEEDED = 10  # before them the slow step is not known
STEPS_KEPT = 500  # the latest ones, so that the limit follows a change of the batch


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


def learn_limit_s(steps_s: Sequence[float], first_s: float) -> float:
    """The limit of the next step. `first_s`: until enough steps were seen, as the first ones compile."""
    slow_s = find_slow_s(steps_s)
    return first_s if slow_s is None else min(CEILING_S, max(FLOOR_S, FACTOR * slow_s))
