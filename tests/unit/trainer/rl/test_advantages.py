from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.rl.rollouts.groups import DEVIATION_FLOOR, compute_advantages

REWARDS = st.lists(st.floats(-100, 100), min_size=1, max_size=16)


def test_rewards_are_compared_with_the_mean_of_their_group() -> None:
    assert compute_advantages([1.0, 0.0, 0.0, 1.0], "mean") == (0.5, -0.5, -0.5, 0.5)


def test_the_deviation_is_that_of_a_sample() -> None:
    rewards = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    expected = (rewards - rewards.mean()) / (rewards.std() + DEVIATION_FLOOR)
    assert compute_advantages(rewards.tolist(), "mean-std") == pytest.approx(expected.tolist())


@pytest.mark.parametrize("rewards", [[0.7], [0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2], [0.0] * 8])
@pytest.mark.parametrize("kind", ["mean-std", "mean"])
def test_equal_rewards_have_no_advantage(rewards: list[float], kind: Literal["mean-std", "mean"]) -> None:
    assert compute_advantages(rewards, kind) == (0.0,) * len(rewards)


def test_rewards_that_differ_by_rounding_have_hardly_an_advantage() -> None:
    assert max(map(abs, compute_advantages([0.3, 0.1 + 0.2], "mean-std"))) < 1e-9


@given(rewards=REWARDS, kind=st.sampled_from(["mean-std", "mean"]))
def test_advantages_sum_to_nothing_and_keep_the_order(rewards: list[float], kind: Literal["mean-std", "mean"]) -> None:
    advantages = compute_advantages(rewards, kind)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-6)
    order = sorted(range(len(rewards)), key=rewards.__getitem__)
    assert [advantages[place] for place in order] == sorted(advantages)
