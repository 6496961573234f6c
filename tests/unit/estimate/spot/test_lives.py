from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.estimate.spot.advice import Saves, daly_interval_s, expect
from tests.unit.estimate.spot.lives import MOST_LOST_MACHINES, SpotRun, bound_fruitless_s, simulate
from tests.unit.estimate.spot.machines import Generated, Machine, Process

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def written(*machines: tuple[float, float]) -> Process:
    """A process that has these machines, (wait_s, up_s), and then one for ever."""

    class Written(NamedTuple):
        def machines(self, _seed: int) -> Iterator[Machine]:
            yield from (Machine(*one) for one in machines)
            while True:
                yield Machine(0, math.inf)

    return Written()


RUN = SpotRun(work_s=1000, interval_s=100, saves=Saves(10, 10), restart_s=50)


def test_a_life_without_interruption() -> None:
    life = simulate(RUN, written(), 0)
    assert (life.end, life.paid_s, life.work_s, life.stall_s) == ("finished", 50 + 1000 + 10 * 10, 1000, 100)
    assert (life.lost_s, life.restart_s, life.interruptions) == (0, 50, 0)


def test_an_interruption_by_hand() -> None:
    """50 s of restart, two saves of 110 s, 30 s lost; then the other eight intervals."""
    life = simulate(RUN, written((0, 50 + 220 + 30)), 0)
    assert (life.end, life.lost_s, life.restart_s, life.interruptions) == ("finished", 30, 100, 1)
    assert life.paid_s == 300 + 50 + 8 * 110


def test_a_wait_for_a_machine_is_not_paid() -> None:
    life = simulate(RUN, written((0, 300), (5000, 400)), 0)
    assert life.elapsed_s == life.paid_s + 5000


def test_what_is_not_yet_written_is_lost() -> None:
    """The marker of the second save comes 60 s after its start, 50 s after the loop went on."""
    late = RUN._replace(saves=Saves(10, 60))
    assert simulate(late, written((0, 50 + 220 + 49)), 0).lost_s == 110 + 49
    assert simulate(late, written((0, 50 + 220 + 50)), 0).lost_s == 50


def test_a_machine_that_goes_before_its_first_step_loses_the_restart_alone() -> None:
    life = simulate(RUN, written((0, 20)), 0)
    assert (life.lost_s, life.restart_s, life.interruptions) == (0, 20 + 50, 1)


def test_ten_lost_machines_without_a_save_end_the_life() -> None:
    life = simulate(RUN, written((0, 300), *[(0, 150)] * 19), 0)
    assert (life.end, life.interruptions) == ("given up", 1 + MOST_LOST_MACHINES)
    assert life.work_s == 200


def test_the_horizon_ends_the_life_and_loses_nothing() -> None:
    life = simulate(RUN._replace(horizon_s=300), written(), 0)
    assert (life.end, life.elapsed_s, life.paid_s, life.lost_s) == ("out of time", 300, 300, 0)


processes = st.builds(Generated, st.floats(1800, 3e5), st.floats(0.4, 3), st.sampled_from([0.0, 600.0]))
runs = st.builds(
    SpotRun,
    work_s=st.one_of(st.floats(1e3, 3e6), st.just(math.inf)),
    interval_s=st.floats(10, 1e5),
    saves=st.builds(Saves, st.floats(0, 600), st.floats(0, 3600)),
    restart_s=st.floats(0, 3600),
    usd_per_hour=st.just(2.0),
    horizon_s=st.just(30 * DAY_S),
)


@settings(max_examples=100, deadline=None)
@given(runs, processes, st.integers(0, 10**6))
def test_no_life_pays_without_end_for_nothing(run: SpotRun, process: Generated, seed: int) -> None:
    life = simulate(run, process, seed)
    assert life.longest_fruitless_s <= bound_fruitless_s(run) * (1 + 1e-9)
    assert life.elapsed_s <= run.horizon_s * (1 + 1e-9)
    assert life.paid_s <= life.elapsed_s * (1 + 1e-9)
    if life.end != "finished":
        parts = life.work_s + life.stall_s + life.lost_s + life.restart_s
        assert parts == pytest.approx(life.paid_s, rel=1e-6, abs=1e-3)


def test_without_the_policy_a_hopeless_run_pays_for_the_whole_month() -> None:
    """Only `gives_up` ends it: the bound is not a property of the process."""
    hopeless = SpotRun(math.inf, 8 * HOUR_S, Saves(60, 60), 600, usd_per_hour=2)
    process = Generated(HOUR_S)
    assert simulate(hopeless, process, 1).end == "given up"
    endless = simulate(hopeless, process, 1, lambda _: False)
    assert endless.end == "out of time"
    assert endless.longest_fruitless_s > bound_fruitless_s(hopeless)


@pytest.mark.parametrize("factor", [0.25, 1, 4])
@pytest.mark.parametrize("between_h", [4, 12, 48])
def test_lost_time_is_that_of_daly(between_h: float, factor: float) -> None:
    """100 lives of 30 days, exponential. The work of `simulate` is compared with eq. 20, which no code of it uses."""
    saves = Saves(60, 60)
    interval_s = factor * daly_interval_s(60, between_h * HOUR_S)
    run = SpotRun(math.inf, interval_s, saves, 600)
    lives = [simulate(run, Generated(between_h * HOUR_S), seed, lambda _: False) for seed in range(100)]
    paid_s = sum(life.paid_s for life in lives)
    lost_s = sum(life.lost_s + life.restart_s for life in lives) - 600 * len(lives)  # the first start is no loss
    expected = expect(1e9, interval_s, saves, 1 / between_h, 600)
    assert lost_s / paid_s == pytest.approx(expected.lost_s / expected.run_s, rel=0.1)


def test_the_best_of_the_tried_intervals_is_the_recommended_one() -> None:
    best_s = daly_interval_s(60, 6 * HOUR_S)
    process = Generated(6 * HOUR_S)

    def mean_s(interval_s: float) -> float:
        run = SpotRun(10 * DAY_S, interval_s, Saves(60, 60), 600, horizon_s=math.inf)
        return statistics.fmean(simulate(run, process, seed, lambda _: False).paid_s for seed in range(100))

    assert min((best_s * 2**power for power in range(-3, 4)), key=mean_s) == best_s
