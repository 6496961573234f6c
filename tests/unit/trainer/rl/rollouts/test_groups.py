from __future__ import annotations

import pytest

from prime_train.spec.rl import Rl
from prime_train.trainer.rl.rollouts.groups import Group, select_samples
from prime_train.trainer.rl.rollouts.rollout import Failed
from tests.unit.trainer.rl.made_rollouts import rollout

POLICY = Rl(group_size=3, advantage="mean", max_behind_steps=1)
FAILED = Failed("reverse-text", 1, "it broke")


def test_a_group_with_equal_rewards_is_left_out_and_counted() -> None:
    groups = [Group(tuple(rollout(seed, reward=1.0) for seed in range(3)))]
    groups += [Group((rollout(3, reward=1.0), rollout(4, reward=0.0), rollout(5, reward=0.5)))]
    selection = select_samples(groups, POLICY, version=1)
    assert [sample.rollout.task for sample in selection.samples] == [3, 4, 5]
    assert [sample.advantage for sample in selection.samples] == [0.5, -0.5, 0.0]
    assert (selection.counts.zero_groups, selection.counts.groups) == (1, 2)
    assert selection.counts.reward == pytest.approx(4.5 / 6)


def test_failed_rollouts_are_not_compared() -> None:
    selection = select_samples([Group((FAILED, rollout(1, reward=1.0), rollout(2, reward=0.0)))], POLICY, version=1)
    assert [sample.advantage for sample in selection.samples] == [0.5, -0.5]
    assert (selection.counts.failed, selection.counts.rollouts) == (1, 2)


def test_rollouts_of_too_old_weights_are_left_out_and_counted() -> None:
    group = Group((rollout(1, reward=1.0, version=3), rollout(2, reward=0.0, version=4), rollout(3, version=5)))
    selection = select_samples([group], POLICY, version=5)
    assert selection.counts.too_old == 1
    assert selection.counts.behind_steps == 0.5
    assert selection.samples == ()


def test_a_truncated_rollout_is_compared_and_does_not_count() -> None:
    group = Group((rollout(1, reward=1.0), rollout(2, reward=0.0, truncated=True)))
    masked = select_samples([group], POLICY, version=1)
    assert [sample.counts for sample in masked.samples] == [True, False]
    assert masked.counts.truncated == 1
    counted = select_samples([group], Rl(mask_truncated=False), version=1)
    assert [sample.counts for sample in counted.samples] == [True, True]


def test_without_a_token_that_counts_there_is_nothing_to_learn() -> None:
    group = Group(tuple(rollout(seed, reward=float(seed), truncated=True) for seed in range(3)))
    assert select_samples([group], POLICY, version=1).samples == ()


def test_a_step_whose_rollouts_all_failed_has_no_reward() -> None:
    counts = select_samples([Group((FAILED, FAILED))], POLICY, version=1).counts
    assert (counts.reward, counts.rollouts, counts.failed, counts.zero_groups) == (0.0, 0, 2, 1)
