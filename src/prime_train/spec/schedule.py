"""Computes the learning rate of a step from its schedule. Pure."""

from __future__ import annotations

import math

from prime_train.spec.run import Schedule


def lr_ratio(schedule: Schedule, step: int, max_steps: int) -> float:
    """The learning rate of optimizer step `step` (0 <= step < max_steps) as a fraction of the peak.

    The warm-up is linear and its last step is at the peak; the decay ends at `min_lr_ratio` on the last step.
    Sources: wsd and its sqrt decay, 1 - sqrt(progress): arXiv 2405.18392, s. 3; inverse-sqrt, which has no end:
    T5, arXiv 1910.10683, s. 3.1.2.
    """
    done = step + 1  # so that the first step does not have a rate of zero
    if done <= schedule.warmup_steps:
        return done / schedule.warmup_steps
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":
            return max(schedule.min_lr_ratio, math.sqrt(max(1, schedule.warmup_steps) / done))
        case "linear":
            shape = 1 - _progress(done, schedule.warmup_steps, max_steps)
        case "cosine":
            shape = (1 + math.cos(math.pi * _progress(done, schedule.warmup_steps, max_steps))) / 2
        case "wsd":
            decay_steps = schedule.decay_steps or max(1, round(0.2 * max_steps))
            progress = _progress(done, max(schedule.warmup_steps, max_steps - decay_steps), max_steps)
            shape = 1 - progress if schedule.decay == "linear" else 1 - math.sqrt(progress)
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * shape


def _progress(done: int, start: int, end: int) -> float:
    """0 up to `start`, 1 from `end` on, linear between."""
    if done >= end:
        return 1.0
    return max(0.0, (done - start) / (end - start))
