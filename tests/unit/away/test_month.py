"""Months of a run on spot machines: the monitor ends what only costs money, and nothing else."""

from __future__ import annotations

import pytest

from prime_train.away.monitor.decide import MonitorLimits
from tests.unit.away.month import HOUR_S, Market, Training, bound_fruitless_s, live_through

pytestmark = pytest.mark.spread
SEEDS = range(8)
HEALTHY = {
    "memoryless": (Training(), Market(6 * HOUR_S)),
    "young machines die first": (Training(), Market(4 * HOUR_S, 0.7)),
    "jobs fail now and then": (Training(), Market(12 * HOUR_S, dies_per_launch=0.5)),
}
HOPELESS = {
    "an interval that no machine survives": (Training(interval_steps=2000), Market(HOUR_S)),
    "a restart that no machine survives": (Training(restart_s=4 * HOUR_S), Market(0.5 * HOUR_S)),
    "every job fails before its first save": (Training(), Market(1e9, dies_always=True)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_run_with_progress_is_left_alone(name: str) -> None:
    training, market = HEALTHY[name]
    assert {live_through(training, market, seed).end for seed in SEEDS} == {"finished"}


@pytest.mark.parametrize("name", HOPELESS)
def test_a_run_that_only_costs_money_is_ended(name: str) -> None:
    training, market = HOPELESS[name]
    for seed in SEEDS:
        month = live_through(training, market, seed)
        assert month.end == "given up"
        assert month.longest_fruitless_s <= bound_fruitless_s(training, MonitorLimits())


def test_without_the_monitor_it_costs_money_for_the_whole_month() -> None:
    training, market = HOPELESS["an interval that no machine survives"]
    alone = live_through(training, market, 0, gives_up=False)
    assert alone.end == "out of time"
    assert alone.longest_fruitless_s > bound_fruitless_s(training, MonitorLimits())


@pytest.mark.parametrize("seed", range(40))
def test_any_market_pays_a_bounded_time_without_a_checkpoint(seed: int) -> None:
    training = Training(interval_steps=(30, 60, 400, 3000)[seed % 4], restart_s=(120.0, 1800.0)[seed % 2])
    market = Market((0.3, 1, 4, 20)[seed // 4 % 4] * HOUR_S, (0.6, 1.0, 2.0)[seed % 3], dies_per_launch=0.3)
    assert live_through(training, market, seed).longest_fruitless_s <= bound_fruitless_s(training, MonitorLimits())
