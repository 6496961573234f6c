"""Reads a line of metrics.jsonl, which has the figures and the times of one step. Opens no file."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from prime_train.core.outside import parse_json
from prime_train.events.bounds import MOST_STEPS, MOST_VALUE

METRICS = ("loss", "grad_norm", "tokens_per_s", "reward", "lr")
TIMES = ("step_s", "data_s", "forward_backward_s", "optimizer_s", "checkpoint_s", "rollouts_s", "weights_s")


class StepLine(NamedTuple):
    """`figures`: those of METRICS in their order, nan for one that cannot be drawn. `times`: seconds, those it has."""

    step: int
    figures: tuple[float, ...]
    times: dict[str, float]


def read_step_line(line: bytes) -> StepLine | None:
    """None for a line that is none."""
    try:
        raw = parse_json(line, not_finite=True)
    except ValueError:
        return None
    step = raw.get("step") if isinstance(raw, dict) else None
    if type(step) is not int or not 0 <= step <= MOST_STEPS:
        return None
    times = {name: value for name in TIMES if (value := to_number(raw.get(name))) == value}
    return StepLine(step, tuple(to_number(raw.get(name)) for name in METRICS), times)


def to_number(value: Any) -> float:
    """The number; nan for anything that cannot be drawn."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MOST_VALUE:
        return math.nan
    return float(value)
