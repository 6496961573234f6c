"""Finds a loss or a gradient norm that leaves its range, in reported steps. Pure.

The range ends 6 deviations above the median over the 200 steps before. A deviation is 1.4826 x the median absolute
deviation, which is the standard deviation for normal noise: a spike moves neither median, while it would raise a
mean. Three steps in a row have to be beyond it, because noise with heavy tails gives single ones. The bundled trainer
judges single steps itself, on the device (trainer/loops/spikes.py): what it has skipped does not reach this series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

WINDOW_STEPS = 200
STREAK_STEPS = 3
FEWEST_STEPS = 50  # with fewer the median is too uncertain to judge by
_DEVIATIONS = 6.0
_NORMAL = 1.4826  # 1 / the 75 % point in a normal distribution
_LEAST_SPREAD = 1e-3  # times the median: a series that does not change has no spread


class ReportedStep(NamedTuple):
    """A step as the trainer reports it. None: it does not report this value."""

    step: int
    loss: float | None
    grad_norm: float | None = None


class Excess(NamedTuple):
    """What the newest steps show."""

    step: int  # the first one beyond the range
    what: str
    is_finite: bool = True
    has_ended: bool = False  # the trainer ended for it
    before: int = 0  # the step that was reported before it, because a trainer of short steps reports some of them
    last: int = 0  # the last one beyond the range


def find_instability(steps: Sequence[ReportedStep]) -> Excess | None:
    """The instability that the newest step ends; None without one. `steps`: oldest first."""
    if not steps:
        return None
    newest = steps[-1]
    for name, value in (("loss", newest.loss), ("gradient norm", newest.grad_norm)):
        if value is not None and not math.isfinite(value):
            what = f"the {name} of step {newest.step:,} is {value}"
            before = steps[-2].step if len(steps) > 1 else 0
            return Excess(newest.step, what, is_finite=False, before=before, last=newest.step)
    return _find_excess("loss", steps, [one.loss for one in steps]) or _find_excess(
        "gradient norm", steps, [one.grad_norm for one in steps]
    )


def _find_excess(name: str, steps: Sequence[ReportedStep], values: Sequence[float | None]) -> Excess | None:
    streak = values[-STREAK_STEPS:]
    before = [value for value in values[-WINDOW_STEPS - STREAK_STEPS : -STREAK_STEPS] if value is not None]
    usual = [value for value in before if math.isfinite(value)]
    lowest = min((math.inf if value is None else value for value in streak), default=math.inf)
    if len(usual) < FEWEST_STEPS or any(value is None for value in streak):
        return None
    middle = median(usual)
    if lowest <= middle:  # nearly every step
        return None
    spread = max(_NORMAL * median(abs(value - middle) for value in usual), _LEAST_SPREAD * abs(middle))
    limit = middle + _DEVIATIONS * spread
    if lowest <= limit:
        return None
    first, last = steps[-STREAK_STEPS].step, steps[-1].step
    what = f"the {name} of steps {first:,} to {last:,} is {lowest:.4g} or more, above {limit:.4g}"
    usually = f"the median of {len(usual)} steps is {middle:.4g}"
    return Excess(first, f"{what}: {usually}", before=steps[-STREAK_STEPS - 1].step, last=last)
