"""Compares the rollouts of each group and chooses those that a step learns from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import Literal

from prime_train.spec.rl import Rl
from prime_train.trainer.rl.batch import JudgedRollout
from prime_train.trainer.rl.rollouts.rollout import Failed, Rollout

# So that rewards which differ by rounding alone get no advantage of 1. Source: the GRPOTrainer of TRL.
DEVIATION_FLOOR = 1e-4


def compute_advantages(rewards: Sequence[float], kind: Literal["mean-std", "mean"]) -> tuple[float, ...]:
    """The advantage of each rollout of a group; 0.0 for equal rewards. The deviation is that of a sample, as in TRL."""
    if len(set(rewards)) < 2:
        return (0.0,) * len(rewards)
    mean = fmean(rewards)
    scale = stdev(rewards) + DEVIATION_FLOOR if kind == "mean-std" else 1.0
    return tuple((reward - mean) / scale for reward in rewards)


@dataclass(frozen=True, slots=True)
class Group:
    """The outcomes of the rollouts of one task."""

    outcomes: tuple[Rollout | Failed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCounts:
    """What the rollouts of a step were like. Means are over those that were scored, and 0 without one."""

    reward: float  # mean
    reward_std: float  # over all rollouts of the step
    answer_tokens: float  # mean
    turns: float  # mean
    behind_steps: float  # mean number of updates that the weights of a rollout lack
    rollouts: int  # scored, and not too old
    truncated: int
    failed: int
    too_old: int  # left out, because their weights lack more updates than rl.max_behind_steps
    groups: int
    zero_groups: int  # left out, because all of their rewards are equal


@dataclass(frozen=True, slots=True)
class Selection:
    """What a step learns from."""

    samples: tuple[JudgedRollout, ...]
    counts: RolloutCounts


def select_samples(groups: Sequence[Group], policy: Rl, version: int) -> Selection:
    """The rollouts of groups whose rewards differ, with their advantages. `version`: the weights before the step."""
    outcomes = [outcome for group in groups for outcome in group.outcomes]
    scored: list[Rollout] = []
    samples: list[JudgedRollout] = []
    zero_groups = 0
    for group in groups:
        kept = [
            each
            for each in group.outcomes
            if isinstance(each, Rollout) and version - each.version <= policy.max_behind_steps
        ]
        advantages = compute_advantages([each.reward for each in kept], policy.advantage)
        scored += kept
        if not any(advantages):
            zero_groups += 1
            continue
        samples += [
            JudgedRollout(each, advantage, counts=not (each.truncated and policy.mask_truncated))
            for each, advantage in zip(kept, advantages, strict=True)
            if each.answer_tokens > 0
        ]
    failed = sum(isinstance(outcome, Failed) for outcome in outcomes)
    counts = RolloutCounts(
        reward=_mean([each.reward for each in scored]),
        reward_std=pstdev([each.reward for each in scored]) if scored else 0.0,
        answer_tokens=_mean([each.answer_tokens for each in scored]),
        turns=_mean([each.turns for each in scored]),
        behind_steps=_mean([version - each.version for each in scored]),
        rollouts=len(scored),
        truncated=sum(each.truncated for each in scored),
        failed=failed,
        too_old=len(outcomes) - failed - len(scored),
        groups=len(groups),
        zero_groups=zero_groups,
    )
    # Samples that are only computed teach nothing by themselves.
    teaches = any(sample.counts for sample in samples)
    return Selection(tuple(samples) if teaches else (), counts)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
