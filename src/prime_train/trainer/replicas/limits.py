"""How long a sum of the replicas may take, from the steps that were measured. Pure: no clock, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

FLOOR_S, CEILING_S = 30.0, 1800.0  # below the floor a page fault or a busy disk would look like a hang
FACTOR = 5.0  # times the 99th percentile of the steps
WIDER = 3.0  # in a phase in which one replica does what the others do not
STEPS_NEEDED = 20  # before them the slowest of a hundred steps is not known
STEPS_KEPT = 500  # the latest ones, so that the limit follows a change of the batch

Phase = Literal["trains", "compiles", "saves", "heals"]


def keep(steps_s: Sequence[float], step_s: float) -> tuple[float, ...]:
    """The latest steps with one more. One that is no time is left out."""
    if not (math.isfinite(step_s) and step_s >= 0):
        return tuple(steps_s)
    return (*steps_s[1 - STEPS_KEPT :], step_s)


def find_p99_s(steps_s: Sequence[float]) -> float | None:
    """The smallest time within which 99 % of the steps ended; None for too few steps."""
    if len(steps_s) < STEPS_NEEDED:
        return None
    return sorted(steps_s)[math.ceil(0.99 * len(steps_s)) - 1]


def find_sum_limit_s(steps_s: Sequence[float], phase: Phase, first_s: float) -> float:
    """The longest wait in one sum. `first_s`: until enough steps are known.

    A sum waits for the slowest replica, so it may take as long as a step of that one.
    """
    p99_s = find_p99_s(steps_s)
    usual_s = first_s if p99_s is None else max(FLOOR_S, FACTOR * p99_s)
    return min(CEILING_S, usual_s if phase == "trains" else WIDER * usual_s)
