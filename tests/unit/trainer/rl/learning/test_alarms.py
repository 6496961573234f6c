from __future__ import annotations

import pytest

from prime_train.core.errors import UserError
from prime_train.events import AlarmCleared, AlarmRaised
from prime_train.trainer.rl.rollouts.rollout import NO_REWARD_STEPS, NO_SIGNAL_STEPS, RolloutAlarms

USUAL = (0.5, 1e-6)  # reward, mismatch


def test_a_mismatch_raises_one_alarm_until_it_is_over() -> None:
    alarms = RolloutAlarms(attempt=2, max_mismatch_kl=0.01)
    assert alarms.check(1, *USUAL, learned=True) == []
    (raised,) = alarms.check(2, 0.5, 0.02, learned=True)
    assert isinstance(raised, AlarmRaised)
    assert (raised.attempt, raised.watch, raised.name, raised.step) == (2, "rl", "rl_mismatch", 2)
    assert "0.02 nats" in raised.what
    assert raised.fix
    assert alarms.check(3, 0.5, 0.03, learned=True) == []
    assert alarms.check(4, 0.5, None, learned=True) == []  # not measured
    assert alarms.check(5, *USUAL, learned=True) == [AlarmCleared(2, "rl", "rl_mismatch", "rollouts")]


def test_a_mismatch_that_is_no_number_raises_the_alarm() -> None:
    (raised,) = RolloutAlarms(1, 0.01).check(1, 0.5, float("nan"), learned=True)
    assert isinstance(raised, AlarmRaised)


def test_steps_without_an_update_raise_an_alarm_that_the_next_update_ends() -> None:
    alarms = RolloutAlarms(1, 0.01)
    changes = [alarms.check(step, 1.0, 1e-6, learned=False) for step in range(1, 3 * NO_SIGNAL_STEPS)]
    raised = [step for step, change in enumerate(changes, 1) if change]
    assert raised == [NO_SIGNAL_STEPS]
    assert alarms.check(99, *USUAL, learned=True) == [AlarmCleared(1, "rl", "rl_no_signal", "rollouts")]


def test_a_run_whose_rollouts_earn_nothing_ends_and_names_what_helps() -> None:
    alarms = RolloutAlarms(1, 0.01)
    nothing = 0.0, 1e-6
    for step in range(1, NO_REWARD_STEPS):
        alarms.check(step, *nothing, learned=False)
    with pytest.raises(UserError) as caught:
        alarms.check(NO_REWARD_STEPS, *nothing, learned=False)
    assert f"last {NO_REWARD_STEPS} steps" in caught.value.what
    assert "rl.warmup_steps" in caught.value.fix


def test_one_reward_begins_the_count_again() -> None:
    alarms = RolloutAlarms(1, 0.01)
    for step in range(1, 4 * NO_REWARD_STEPS):
        earned = 0.1 if step % (NO_REWARD_STEPS - 1) == 0 else 0.0
        alarms.check(step, earned, 1e-6, learned=False)
