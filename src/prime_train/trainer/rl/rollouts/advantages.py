"""Compares the rewards of a group of rollouts with each other. Pure.

Source of group-relative advantages: DeepSeekMath, arXiv 2402.03300, s. 4.1.1; without the deviation: Dr. GRPO, arXiv
2503.20783, s. 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

# So that rewards which differ by rounding alone get no advantage of 1. Source: the GRPOTrainer of TRL.
DEVIATION_FLOOR = 1e-4


def compute_advantages(rewards: Sequence[float], kind: Literal["mean-std", "mean"]) -> tuple[float, ...]:
    """The advantage of each rollout of one group; all 0.0 if the rewards are equal, as in a group of one.

    The deviation is that of a sample (divided by n - 1), as in TRL.
    """
    if len(set(rewards)) < 2:
        return (0.0,) * len(rewards)
    mean = fmean(rewards)
    scale = stdev(rewards) + DEVIATION_FLOOR if kind == "mean-std" else 1.0
    return tuple((reward - mean) / scale for reward in rewards)
