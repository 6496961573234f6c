"""Simulates 30 days on spot machines for 1,000 seeds: lost work against Young and Daly, and what the monitor ends.

Two parts. Lost time by interval and rate, under exponential interruptions, against Daly's expected run, and the lost
work per interruption against Young's half interval. Months of polls by the real decisions of the monitor, over markets
that are usable and markets that are not.
Everything is computed from seeds; no figure depends on the machine.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.unit.away.month import HOUR_S, Market, Training, bound_fruitless_s, live_through
from tests.unit.estimate.spot.lives import SpotRun, simulate
from tests.unit.estimate.spot.machines import Generated

from prime_train.away.monitor.decide import MonitorLimits
from prime_train.estimate.spot.advice import Saves, daly_interval_s, expect

SAVES = Saves(30.0, 30.0)
RESTART_S = 600.0
MARKETS = {
    "memoryless, 6 h": (Training(), Market(6 * HOUR_S)),
    "Weibull 0.7, 4 h": (Training(), Market(4 * HOUR_S, 0.7)),
    "jobs fail now and then": (Training(), Market(12 * HOUR_S, dies_per_launch=0.5)),
    "no machine lives for an interval": (Training(interval_steps=2000), Market(HOUR_S)),
    "every job fails before its first save": (Training(), Market(1e9, dies_always=True)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    seeds = parser.parse_args().seeds
    rows = [lost(between_h, factor, seeds) for between_h in (2.0, 6.0, 24.0) for factor in (0.5, 1.0, 2.0)]
    rows += [months(name, *market, seeds) for name, market in MARKETS.items()]
    record.write("spot", rows)


def lost(between_h: float, factor: float, seeds: int) -> dict[str, Any]:
    """30 days of each seed, without an end of the run. The first start is no loss."""
    best_s = daly_interval_s(SAVES.stall_s, between_h * HOUR_S)
    run = SpotRun(math.inf, factor * best_s, SAVES, RESTART_S)
    lives = [simulate(run, Generated(between_h * HOUR_S), seed, lambda _: False) for seed in range(seeds)]
    paid_s = sum(life.paid_s for life in lives)
    lost_s = sum(life.lost_s + life.restart_s for life in lives) - RESTART_S * seeds
    expected = expect(1e9, run.interval_s, SAVES, 1 / between_h, RESTART_S)
    trained = sum(life.lost_s for life in lives) / sum(life.interruptions for life in lives)
    return record.emit(
        f"lost time over Daly's, {between_h:g} h between interruptions, {factor:g} x the best interval",
        [lost_s / paid_s / (expected.lost_s / expected.run_s)],
        unit="ratio",
        seeds=seeds,
        days=30,
        interval_s=round(run.interval_s, 1),
        lost_share=round(lost_s / paid_s, 5),
        daly_share=round(expected.lost_s / expected.run_s, 5),
        lost_work_s=round(trained, 1),
        young_half_interval_s=round((run.interval_s + SAVES.stall_s) / 2, 1),
    )


def months(name: str, training: Training, market: Market, seeds: int) -> dict[str, Any]:
    """Months watched by the monitor. Samples: the longest paid hours without a checkpoint."""
    lived = [live_through(training, market, seed) for seed in range(seeds)]
    alone = live_through(training, market, 0, gives_up=False)
    return record.emit(
        f"longest paid time without a checkpoint, {name}",
        [month.longest_fruitless_s / HOUR_S for month in lived],
        unit="h",
        ends=dict(Counter(month.end for month in lived)),
        highest=round(max(month.longest_fruitless_s for month in lived) / HOUR_S, 2),
        bound=round(bound_fruitless_s(training, MonitorLimits()) / HOUR_S, 2),
        mean_paid_h=round(sum(month.paid_s for month in lived) / HOUR_S / seeds, 1),
        paid_h_without_the_monitor=round(alone.paid_s / HOUR_S, 1),
    )


if __name__ == "__main__":
    main()
